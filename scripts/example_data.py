"""Makes the data of the examples that come with the package: ``python scripts/example_data.py``.

The data are made up, and the same each time: a test compares them with the files. The oracle of each example, which
says what it must find, is in its test.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "src" / "pillarbox" / "examples"


def payments() -> Iterator[tuple[Path, list[str], list[tuple[Any, ...]]]]:
    """20,000 payments with 400 cards in ten hours, a file for each hour, in the order in which they arrive.

    A payment arrives up to 20 seconds after it was made. Twelve arrive more than an hour late, and six have amounts
    that are no numbers. Thieves try a card with a very small payment, and make a large one within a minute; some honest
    customers make a small payment and a large one as well, but not so soon.
    """
    draw = random.Random(1)
    opening = datetime(2026, 3, 2, 8)
    countries = {f"c{number:03}": draw.choices(["DE", "FR", "US", "IN"], [5, 2, 2, 1])[0] for number in range(400)}
    means = {card: draw.uniform(10, 80) for card in countries}
    made: list[tuple[float, str, float]] = []
    for _ in range(19_880):
        card = draw.choice(list(countries))
        made.append((draw.uniform(0, 36_000), card, max(1.0, draw.gauss(means[card], means[card] / 4))))
    for number in range(60):  # 40 thieves and 20 honest ones: a small payment and a large one
        card, at = draw.choice(list(countries)), draw.uniform(0, 35_500)
        gap = draw.uniform(5, 45) if number < 40 else draw.uniform(90, 300)
        made += [(at, card, draw.uniform(0.1, 0.9)), (at + gap, card, draw.uniform(520, 2_500))]
    made.sort()
    ordinary = [number for number, (at, _, amount) in enumerate(made) if at < 28_000 and 1 <= amount < 500]
    late = set(draw.sample(ordinary, 12))
    arrivals = []
    for number, (at, card, amount) in enumerate(made):
        arrives = at + (4_000 if number in late else draw.uniform(0, 20))
        arrivals.append((arrives, number, opening + timedelta(seconds=int(at)), card, f"{amount:.2f}"))
    arrivals.sort()
    bad = dict(zip(draw.sample(range(len(arrivals)), 6), ["12,50", "n/a", "", "free", "1.2.3", "8 EUR"]))
    hours: dict[int, list[tuple[Any, ...]]] = {}
    for place, (arrives, number, moment, card, text) in enumerate(arrivals):
        row = (100_000 + number, card, moment, bad.get(place, text), countries[card])
        hours.setdefault(min(int(arrives // 3_600), 9), []).append(row)
    for hour, rows in sorted(hours.items()):
        path = EXAMPLES / "fraud" / "payments" / f"{opening + timedelta(hours=hour):%Y-%m-%d-%H}.csv"
        yield path, ["id", "card", "at", "amount", "country"], rows


EVERY = (payments,)


def files() -> dict[Path, str]:
    """Return the text of each file, by its path."""
    return {path: _as_text(heading, rows) for make in EVERY for path, heading, rows in make()}


def _as_text(heading: list[str], rows: Iterable[tuple[Any, ...]]) -> str:
    lines: list[str] = []

    class Lines:
        def write(self, line: str) -> None:
            lines.append(line)

    writer = csv.writer(Lines(), lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return "".join(lines)


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)
