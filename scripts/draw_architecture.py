"""Draws the pictures in docs/architecture.md: ``python -m scripts.draw_architecture``.

They show processes and the data between them, so drawing them runs no program.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from scripts.draw_concepts import Canvas
from scripts.draw_windows import COLORS, LINE

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "architecture"
TO = ' marker-end="url(#to)"'
DASHED = ' stroke-dasharray="4 3"'


class Box(NamedTuple):
    """A box with lines of text."""

    x: float
    y: float
    width: float
    height: float
    words: str

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def draw(self, canvas: Canvas, color: str) -> None:
        canvas.box(self.x, self.y, self.width, self.height, color)
        _words(canvas, *self.middle, self.words)


def _words(canvas: Canvas, x: float, y: float, words: str) -> None:
    """Draw lines of text, centered at a point."""
    lines = words.split("\n")
    for index, line in enumerate(lines):
        canvas.text(x, y + 4 + 16 * (index - (len(lines) - 1) / 2), line, middle=True)


def _frame(canvas: Canvas, width: float, height: float, words: str) -> None:
    dashed = f'fill="none" stroke="{LINE}"{DASHED}'
    canvas.parts.append(f'<rect x="2" y="2" width="{width:g}" height="{height:g}" rx="5" {dashed}/>')
    canvas.text(10, 18, words, bold=True)


def _both_ways(canvas: Canvas, x1: float, y1: float, x2: float, y2: float) -> None:
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    canvas.arrow(x, y, x1, y1)
    canvas.arrow(x, y, x2, y2)


def query() -> str:
    """Draw the levels of a query, from the source to the sink, and its state store."""
    canvas = Canvas("A streaming query: levels of tasks, with Spark's shuffle between them", 178)
    _frame(canvas, 614, 174, "one streaming query")
    top, height = 50, 44
    boxes = [
        Box(8, top, 70, height, "source\nDataFrame"),
        Box(118, top, 122, height, "mapInArrow:\nSourceStreamTask"),
        Box(298, top, 184, height, "transformWithStateInPandas:\nMultipleInputStreamTask"),
        Box(544, top, 64, height, "the last\nlevel"),
        Box(676, top, 60, height, "Spark\nsink"),
    ]
    ways = ["Arrow", "buffers,\nshuffled", "buffers,\nshuffled", "typed\ncolumns"]
    for number, box in enumerate(boxes):
        box.draw(canvas, LINE if number in (0, 4) else COLORS[number == 1])
    for left, right, way in zip(boxes, boxes[1:], ways):
        y = top + height / 2
        canvas.arrow(left.right, y, right.x, y)
        lines = way.count("\n")
        _words(canvas, (left.right + right.x) / 2, y - 12 - 8 * lines, way)
    store = Box(335, 136, 110, 30, "state store")
    store.draw(canvas, LINE)
    x = store.middle[0]
    _both_ways(canvas, x, top + height, x, store.y)
    canvas.text(x + 8, (top + height + store.y) / 2 + 4, "chunks")
    return canvas.whole()


def homes() -> str:
    """Draw the processes of an executor: Python workers as relays, homes, and their starter."""
    canvas = Canvas("The processes of an executor: relays, homes and the starter", 256)
    _frame(canvas, 736, 252, "executor")
    jvm = Box(14, 110, 96, 44, "JVM")
    starter = Box(420, 116, 96, 32, "starter")
    relays = [Box(230, y, 130, 44, "Python worker:\nrelay") for y in (40, 180)]
    places = [Box(590, y, 130, 44, f"home: level 1,\npartition {number}") for number, y in enumerate((40, 180))]
    jvm.draw(canvas, LINE)
    starter.draw(canvas, LINE)
    for relay, home in zip(relays, places):
        relay.draw(canvas, COLORS[0])
        home.draw(canvas, COLORS[1])
        y = relay.middle[1]
        _both_ways(canvas, jvm.right, jvm.middle[1], relay.x, y)
        _both_ways(canvas, relay.right, y, home.x, y)
        _words(canvas, (relay.right + home.x) / 2, y - 18, "Unix socket:\nbuffers, output, chunks")
        edge = relay.y + relay.height if relay is relays[0] else relay.y
        canvas.line(relay.middle[0], edge, starter.x, starter.middle[1], more=DASHED + TO)
        canvas.line(starter.right, starter.middle[1], home.middle[0], edge, more=DASHED + TO)
    _words(canvas, 140, 74, "Arrow,\nstate server")
    _words(canvas, 306, 132, "where is\nthe home?")
    _words(canvas, 640, 132, "forks, ends")
    return canvas.whole()


PICTURES = {"query": query, "homes": homes}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
