"""Draws the picture in docs/two-inputs.md: ``python scripts/draw_joins.py`` writes it to docs/images/joins.

It shows a run, on the local runtime, of the join above the picture. Each record arrives in a separate epoch. A left
record's bar is its interval.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from pillarbox import Types, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness, row

WINDOWS = runpy.run_path(str(Path(__file__).with_name("draw_windows.py")))
FOLDER = Path(__file__).parents[1] / "docs" / "images" / "joins"
LOWER, UPPER = -2, 5
JOIN = f'left.key_by("key").interval_join(right.key_by("key")).between("{LOWER} seconds", "{UPPER} seconds")'
TITLE = f'{JOIN}.columns("left")'
# Side and time (seconds), in order of arrival.
RECORDS = [
    ("left", 4),
    ("right", 6),
    ("right", 11),
    ("left", 12),
    ("right", 16),
    ("left", 22),
    ("right", 30),
    ("left", 31),
]
RECORD = Types.ROW_NAMED(["key", "at", "number"], [Types.STRING(), Types.LONG(), Types.LONG()])


def run() -> dict[int, list[tuple[int | None, str]]]:
    """Run the join. Returns each left record's outcomes: (the partner's number or None, cause)."""

    def build(env: Any, left: Any, right: Any) -> Any:
        in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        lefts, rights = (
            stream.map(lambda record: record, RECORD).assign_timestamps_and_watermarks(in_order).key_by("key")
            for stream in (left, right)
        )
        near = lefts.interval_join(rights).between(f"{LOWER} seconds", f"{UPPER} seconds")
        return near.columns("left", suffixes=("", "_right"))

    partners: dict[int, list[tuple[int | None, str]]] = {}

    def note(rows: list[Any], cause: str) -> None:
        for pair in rows:
            partners.setdefault(pair.number, []).append((pair.number_right, cause))

    with ProgramTestHarness(build) as harness:
        for number, (side, time) in enumerate(RECORDS, 1):
            harness.push(side, row(key="a", at=time * 1000, number=number))
            note(harness.run_epoch()["output"], f"when {number} comes")
        note(harness.end_input()["output"], "at the end of the data")
    return partners


def draw() -> str:
    """Return the drawing as SVG."""
    svg, lane = WINDOWS["Svg"](), WINDOWS["Lane"]
    colors = dict(zip(("left", "right"), WINDOWS["COLORS"]))
    svg.title(TITLE)
    for side, color in colors.items():
        records = {number: time for number, (which, time) in enumerate(RECORDS, 1) if which == side}
        svg.records(lane(TITLE, side, records), color, side)
    for number, outcomes in sorted(run().items()):
        time = RECORDS[number - 1][1]
        labels = [
            f"{number} {cause}, without a partner" if partner is None else f"{number} and {partner} {cause}"
            for partner, cause in outcomes
        ]
        x, width = svg.x(time + LOWER), (UPPER - LOWER) * WINDOWS["SECOND"]
        color = colors["left"]
        svg.parts.append(
            f'<rect x="{x:g}" y="{svg.y + 2:g}" width="{width:g}" height="{WINDOWS["ROW"] - 5}" rx="3" fill="{color}"'
            f' fill-opacity="0.2" stroke="{color}"/>'
        )
        svg.text(svg.x(time), svg.y + 14, str(number), more=' font-weight="bold" text-anchor="middle"')
        svg.text(x + width + 6, svg.y + 14, "; ".join(labels))
        svg.y += WINDOWS["ROW"]
    svg.y += 4
    svg.axis()
    drawing: str = svg.whole(TITLE)
    return drawing


def main() -> None:
    """Write the picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "interval.svg").write_text(draw())


if __name__ == "__main__":
    main()
