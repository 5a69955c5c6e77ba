"""Draws the pictures in docs/windows.md: ``python scripts/draw_windows.py`` writes them to docs/images/windows.

Each shows a run, on the local runtime, of the windows above the picture. Records arrive in the order of their numbers,
each in a separate epoch. A bar is a window that fires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pillarbox
from pillarbox import DataStream, OutputTag, ProcessWindowFunction, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "windows"
LATE = OutputTag("late")


class Event(NamedTuple):
    """A record's key, number (in order of arrival) and time."""

    key: str
    number: int
    value: int


class Firing(NamedTuple):
    """A window that fired. Times are in seconds, and None for windows without a clock."""

    key: str
    start: int | None
    end: int | None
    numbers: tuple[int, ...]
    cause: str


@dataclass
class Picture:
    """The description of a picture and its program.

    Attributes:
        name: the file's name.
        lanes: expressions that assign windows; drawn one below the other, with the same records.
        records: key and time (seconds), in order of arrival.
        strategy: makes the watermarks.
        silence: seconds without records at the end, in steps of five.
        ends: whether the data then ends.
    """

    name: str
    lanes: list[str]
    records: list[tuple[str, int]]
    strategy: str = 'for_bounded_out_of_orderness("0 seconds")'
    silence: int = 0
    ends: bool = True


ONE_KEY = [("a", 1), ("a", 4), ("a", 8), ("a", 13), ("a", 17), ("a", 24), ("a", 27)]
TWO_KEYS = [("a", 1), ("b", 3), ("a", 6), ("a", 12), ("b", 14), ("b", 21), ("a", 25), ("b", 27)]
BY_TRIGGER = 'window(TumblingEventTimeWindows.of("20 seconds"))'

PICTURES = [
    Picture("tumbling", ['window(TumblingEventTimeWindows.of("10 seconds"))'], TWO_KEYS),
    Picture("sliding", ['window(SlidingEventTimeWindows.of("20 seconds", "10 seconds"))'], ONE_KEY),
    Picture("cumulating", ['window(CumulativeEventTimeWindows.of("30 seconds", "10 seconds"))'], ONE_KEY),
    Picture(
        "session",
        ['window(EventTimeSessionWindows.with_gap("6 seconds"))'],
        [("a", 1), ("b", 3), ("a", 5), ("a", 14), ("a", 10), ("b", 20), ("b", 24), ("a", 27)],
        'for_bounded_out_of_orderness("5 seconds")',
    ),
    Picture("count", ["count_window(3)", "count_window(3, 2)"], ONE_KEY),
    Picture(
        "global",
        [
            "window(GlobalWindows.create()).trigger(CountTrigger.of(3))",
            "window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(3)))",
        ],
        ONE_KEY,
    ),
    Picture(
        "triggers",
        [
            BY_TRIGGER,
            f'{BY_TRIGGER}.trigger(ContinuousEventTimeTrigger.of("5 seconds"))',
            f"{BY_TRIGGER}.trigger(CountTrigger.of(2))",
            f"{BY_TRIGGER}.trigger(PurgingTrigger.of(CountTrigger.of(2)))",
        ],
        ONE_KEY,
    ),
    Picture(
        "lateness",
        ['window(TumblingEventTimeWindows.of("10 seconds")).allowed_lateness("8 seconds").side_output_late_data(LATE)'],
        [("a", 1), ("a", 7), ("a", 12), ("a", 5), ("a", 16), ("a", 9), ("a", 21), ("a", 3)],
    ),
    Picture(
        "quiet",
        ['window(TumblingEventTimeWindows.of("10 seconds"))'],
        [("a", 2), ("a", 7), ("a", 12), ("a", 16)],
        'for_bounded_out_of_orderness("3 seconds").with_wall_clock_progress("5 seconds")',
        silence=20,
        ends=False,
    ),
]


# -- running --


class Contents(ProcessWindowFunction):
    """Emits the numbers of a window's records."""

    def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
        window = context.window()
        yield key, getattr(window, "start", None), getattr(window, "end", None), tuple(e.number for e in elements)


@dataclass
class Lane:
    """The outcome of a run, for one key.

    Attributes:
        title: the expression that was run.
        records: number and time of each record.
        late: the numbers of late records.
    """

    title: str
    key: str
    records: dict[int, int] = field(default_factory=dict)
    firings: list[Firing] = field(default_factory=list)
    late: set[int] = field(default_factory=set)


def run(picture: Picture, expression: str) -> list[Lane]:
    """Run one of a picture's expressions. Returns the outcome by key."""

    def build(env: Any, events: DataStream) -> dict[str, DataStream]:
        strategy = eval(f"WatermarkStrategy.{picture.strategy}", {"WatermarkStrategy": WatermarkStrategy})
        timed = events.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda event: event.value))
        names = {**vars(pillarbox), **{name: getattr(pillarbox, name) for name in pillarbox.__all__}}
        stream = timed.key_by(lambda event: event.key)
        windows = eval(f"stream.{expression}", {**names, "stream": stream, "LATE": LATE}).process(Contents())
        return {"fired": windows, "late": windows.get_side_output(LATE)}

    lanes = {key: Lane(expression, key) for key in sorted({key for key, _ in picture.records})}

    def note(outputs: dict[str, list[Any]], cause: str) -> None:
        for key, start, end, numbers in outputs["fired"]:
            begin, over = (None if time is None else time // 1000 for time in (start, end))
            lanes[key].firings.append(Firing(key, begin, over, numbers, cause))
        for event in outputs["late"]:
            lanes[event.key].late.add(event.number)

    with ProgramTestHarness(build) as harness:
        for number, (key, time) in enumerate(picture.records, 1):
            lanes[key].records[number] = time
            harness.push("events", Event(key, number, time * 1000))
            note(harness.run_epoch(), f"when {number} comes")
        for seconds in range(5, picture.silence + 1, 5):
            harness.advance_processing_time(5000)
            note(harness.run_epoch(), f"after {seconds} s without a record")
        if picture.ends:
            note(harness.end_input(), "at the end of the data")
    return list(lanes.values())


# -- drawing --

# Readable on white and dark pages.
TEXT, LINE = "#717a84", "#8b949e"
COLORS = ["#3b82d6", "#c8652a"]
LATE_COLOR = "#d14b58"
SECONDS = 40
LEFT, SECOND, RIGHT = 40, 15, 190
MOST_LETTERS = 108
ROW, RECORDS, TITLE = 21, 30, 26


class Svg:
    """The SVG text of a drawing, which grows downwards."""

    def __init__(self) -> None:
        self.width = LEFT + SECONDS * SECOND + RIGHT
        self.y = 0
        self.parts: list[str] = []

    def x(self, seconds: float) -> float:
        return LEFT + seconds * SECOND

    def text(self, x: float, y: float, text: str, *, size: int = 11, color: str = TEXT, more: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}"{more}>{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, more: str = "") -> None:
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{LINE}"{more}/>')

    def title(self, text: str) -> None:
        lines, *calls = re.split(r"(?<=\))\.(?=[a-z_]+\()", text)
        for call in calls:
            fits = len(lines.rpartition("\n")[2]) + len(call) < MOST_LETTERS
            lines += f".{call}" if fits else f"\n    .{call}"
        for line in lines.split("\n"):
            indent = len(line) - len(line.lstrip())
            self.text(4 + indent * 7, self.y + 17, line.lstrip(), size=12, more=' font-family="monospace"')
            self.y += TITLE - 8
        self.y += 8

    def records(self, lane: Lane, color: str, label: str) -> None:
        middle = self.y + RECORDS / 2
        self.text(4, middle + 4, label, size=12)
        self.line(LEFT, middle, self.x(SECONDS), middle)
        for number, time in lane.records.items():
            late = number in lane.late
            fill, ring = ("none", LATE_COLOR) if late else (color, color)
            self.parts.append(f'<circle cx="{self.x(time):g}" cy="{middle:g}" r="9" fill="{fill}" stroke="{ring}"/>')
            inside = LATE_COLOR if late else "#ffffff"
            middled = ' text-anchor="middle" font-weight="bold"'
            self.text(self.x(time), middle + 4, str(number), color=inside, more=middled)
        self.y += RECORDS

    def firing(self, lane: Lane, firing: Firing, color: str) -> None:
        times = [lane.records[number] for number in firing.numbers]
        start, end, dashes = min(times) - 0.6, max(times) + 0.6, ' stroke-dasharray="3 2"'
        if firing.start is not None and firing.end is not None:
            start, end, dashes = firing.start, firing.end, ""
        x, width = self.x(max(start, 0)), (min(end, SECONDS) - max(start, 0)) * SECOND
        self.parts.append(
            f'<rect x="{x:g}" y="{self.y + 2:g}" width="{width:g}" height="{ROW - 5}" rx="3" fill="{color}"'
            f' fill-opacity="0.2" stroke="{color}"{dashes}/>'
        )
        self.text(x + 5, self.y + 14, " ".join(map(str, firing.numbers)), more=' font-weight="bold"')
        self.text(x + width + 6, self.y + 14, f"fires {firing.cause}")
        self.y += ROW

    def late(self, lane: Lane) -> None:
        for number in sorted(lane.late):
            self.text(self.x(lane.records[number]) + 14, self.y + 12, f"{number} is too late", color=LATE_COLOR)
            self.y += ROW

    def axis(self) -> None:
        for seconds in range(0, SECONDS + 1, 10):
            self.line(self.x(seconds), 4, self.x(seconds), self.y, ' stroke-opacity="0.35" stroke-dasharray="2 3"')
            self.text(self.x(seconds), self.y + 13, f"{seconds} s", more=' text-anchor="middle"')
        self.y += 20

    def whole(self, description: str) -> str:
        size = f'width="{self.width}" height="{self.y}" viewBox="0 0 {self.width} {self.y}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">'
        return "\n".join([head, f"<title>{escape(description)}</title>", *self.parts, "</svg>", ""])


def draw(picture: Picture) -> str:
    """Run a picture's windows, and return a drawing of the outcome."""
    lanes = [lane for expression in picture.lanes for lane in run(picture, expression)]
    svg = Svg()
    if "with_" in picture.strategy:
        svg.title(f"WatermarkStrategy.{picture.strategy}")
    title = ""
    for lane in lanes:
        if lane.title != title:
            title = lane.title
            svg.title(f"key_by(...).{title}")
        color = COLORS[sorted({key for key, _ in picture.records}).index(lane.key)]
        svg.records(lane, color, lane.key)
        for firing in lane.firings:
            svg.firing(lane, firing, color)
        svg.late(lane)
        svg.y += 4
    svg.axis()
    return svg.whole(", ".join(picture.lanes))


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        (FOLDER / f"{picture.name}.svg").write_text(draw(picture))


if __name__ == "__main__":
    main()
