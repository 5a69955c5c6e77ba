"""Draws the pictures in docs/concepts.md: ``python -m scripts.draw_concepts`` writes them to docs/images/concepts.

Each picture shows a run on the local runtime, or a program's plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness, row
from scripts.draw_windows import COLORS, LATE_COLOR, LINE, TEXT

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "concepts"
WIDTH = 740


class Canvas:
    """A drawing of boxes, lines and text."""

    def __init__(self, title: str, height: int) -> None:
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">'
        arrow = f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/>'
        marker = f'<marker id="to" markerWidth="8" markerHeight="8" refX="8" refY="4" orient="auto">{arrow}</marker>'
        self.parts = [head, f"<title>{escape(title)}</title>", f"<defs>{marker}</defs>"]

    def text(
        self, x: float, y: float, text: str, color: str = TEXT, *, middle: bool = False, bold: bool = False
    ) -> None:
        more = ' text-anchor="middle"' * middle + ' font-weight="bold"' * bold
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="12" fill="{color}"{more}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, color: str, *, dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="4 3"' * dashed
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{color}" fill-opacity="0.14"'
            f' stroke="{color}"{dashes}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, color: str = LINE, more: str = "") -> None:
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}"{more}/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.line(x1, y1, x2, y2, more=' marker-end="url(#to)"')

    def whole(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


# -- a program on Spark --


def plan() -> str:
    """Draw the levels of a program, its subtasks, and the partitions of Spark that run them."""
    env = StreamExecutionEnvironment().set_parallelism(2).set_max_parallelism(4)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    payments = env.from_collection([row(card="c1", at=0, shop="s1")]).name("payments")
    by_card = payments.filter(bool).name("filter").assign_timestamps_and_watermarks(at).key_by("card")
    by_shop = by_card.process(Count()).name("count by card").key_by("shop")
    by_shop.process(Count()).name("count by shop").print()
    program = env.get_execution_graph()
    canvas = Canvas("A program as levels of tasks", 250)
    width, gap, top = 190, 60, 34
    canvas.text(8, top + 64, "partition 0")
    canvas.text(8, top + 154, "partition 1")
    for number, vertex in enumerate(program.vertices):
        x = 80 + number * (width + gap - 30)
        color = COLORS[number % 2]
        names = [node.name for node in vertex.nodes if node.name != "output"]
        canvas.text(x + width / 2, 18, "one task in each partition" if number else "Spark reads", middle=True)
        for partition in range(2):
            y = top + partition * 90
            canvas.box(x, y, width, 80, color)
            for index, name in enumerate(names):
                canvas.text(x + 10, y + 20 + 16 * index, name, bold=True)
            if number:
                subtasks = [subtask for subtask in range(4) if subtask % 2 == partition]
                canvas.text(x + 10, y + 68, f"state of subtasks {subtasks[0]} and {subtasks[1]}")
            if number + 1 < len(program.vertices):
                for other in range(2):
                    canvas.arrow(x + width, y + 40, x + width + gap - 30, top + other * 90 + 40)
    canvas.text(80 + width, 232, "shuffle by card", middle=True)
    canvas.text(80 + 2 * width + 30, 232, "shuffle by shop", middle=True)
    return canvas.whole()


class Count(KeyedProcessFunction):
    """Counts the records of a key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update(self.seen.value() + 1)
        yield value.card, self.seen.value()


# -- event time --


class Seen(NamedTuple):
    """A record on its arrival."""

    number: int
    second: int
    late: bool


class Alarm(KeyedProcessFunction):
    """Reports records that arrive after the watermark, and timers that fire."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(20_000)
        yield "record", value.number, ctx.timestamp() <= ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", timestamp // 1000, False


TIMES = [[3, 9, 6], [14, 11, 18], [16, 8, 24], [27, 33, 29]]
BOUND = 5


def event_time() -> str:
    """Draw records in order of arrival, and the watermark after each epoch."""

    def build(env: Any, events: Any) -> Any:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND} seconds").with_timestamp_assigner("at")
        return events.assign_timestamps_and_watermarks(strategy).key_by("key").process(Alarm()).uid("alarm")

    canvas = Canvas("The watermark advances at the end of each epoch", 332)
    left, second, top, step = 90, 15, 34, 19

    def x(seconds: float) -> float:
        return left + seconds * second

    for seconds in range(0, 41, 10):
        canvas.line(x(seconds), 22, x(seconds), 318, more=' stroke-opacity="0.35" stroke-dasharray="2 3"')
        canvas.text(x(seconds), 16, f"{seconds} s", middle=True)
    number, y, highest = 0, top, 0
    with ProgramTestHarness(build) as harness:
        for epoch, times in enumerate(TIMES, 1):
            begin = number
            harness.push(
                "events", *(row(key="k", number=begin + index, at=at * 1000) for index, at in enumerate(times))
            )
            (results,) = harness.run_epoch().values()
            late = {number for kind, number, is_late in results if kind == "record" and is_late}
            canvas.text(8, y + 30, f"epoch {epoch}")
            for at in times:
                color = LATE_COLOR if number in late else COLORS[0]
                canvas.parts.append(f'<circle cx="{x(at):g}" cy="{y + 9:g}" r="6" fill="{color}"/>')
                if number in late:
                    canvas.text(x(at) + 10, y + 13, "late", LATE_COLOR)
                number, y = number + 1, y + step
            highest = max(highest, *times)
            canvas.line(
                x(highest - BOUND), y - 3 * step, x(highest - BOUND), y + 12, color=COLORS[1], more=' stroke-width="2"'
            )
            fired = [second for kind, second, _ in results if kind == "timer"]
            words = f"watermark {highest - BOUND} s" + "".join(f": timer {at} s fires" for at in fired)
            canvas.text(x(highest - BOUND) + 6, y + 11, words, COLORS[1])
            y += 18
    return canvas.whole()


# -- exactly once --


def epochs() -> str:
    """Draw epochs. One fails and is repeated."""

    def build(env: Any, events: Any) -> Any:
        return events.key_by("card").process(Count()).uid("count")

    canvas = Canvas("A lost epoch runs again with the state of the one before", 190)
    inputs = [["a", "b"], ["a"], ["b", "a"], ["a"]]
    width, gap = 128, 12
    column = 0
    for words, y in (("input", 62), ("output", 92), ("state after it", 122)):
        canvas.text(4, y, words)
    state: dict[str, int] = {}

    def draw(title: str, cards: list[str], output: list[Any] | None) -> None:
        nonlocal column
        x = 92 + column * (width - 16 + gap)
        lost = output is None
        canvas.box(x, 26, width - 16, 110, LATE_COLOR if lost else COLORS[0], dashed=lost)
        canvas.text(x + 10, 18, title, LATE_COLOR if lost else TEXT, bold=True)
        canvas.text(x + 10, 62, " ".join(cards))
        canvas.text(x + 10, 92, "lost" if output is None else " ".join(f"{card}:{seen}" for card, seen in output))
        canvas.text(x + 10, 122, " ".join(f"{card}={seen}" for card, seen in sorted(state.items())))
        column += 1

    with ProgramTestHarness(build) as harness:
        for number, cards in enumerate(inputs, 1):
            harness.push("events", *(row(card=card) for card in cards))
            if number == 3:
                harness.fail_epoch()
                draw("epoch 3", cards, None)
            (results,) = harness.run_epoch().values()
            state.update(dict(results))
            draw(f"epoch {number}" + " again" * (number == 3), cards, results)
    canvas.text(
        92, 160, "A worker dies in epoch 3. Spark begins it again, with the same input and the state after epoch 2."
    )
    canvas.text(
        92, 178, "Only a committed epoch counts: its positions in the source, its state and its timers belong together."
    )
    return canvas.whole()


PICTURES = {"plan": plan, "event-time": event_time, "epochs": epochs}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
