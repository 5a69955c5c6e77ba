"""Windows of all kinds with lateness, disorder, batches of records and restarts, compared with a simple model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pillarbox._operators.functions.metric_group import LATE_RECORDS_DROPPED
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from tests.operators.windowing.windows import Contents, open_windows

LATE = OutputTag("late")
Span = tuple[int, int]


@dataclass
class Kind:
    """Windows of one kind, in the program and as a plain function."""

    name: str
    assigner: Any
    windows_at: Any
    merges: bool = False

    def __repr__(self) -> str:
        return self.name


def tumbling(size: int, offset: int) -> Kind:
    def at(time: int) -> list[Span]:
        start = math.floor((time - offset) / size) * size + offset
        return [(start, start + size)]

    return Kind(f"tumbling({size}, {offset})", TumblingEventTimeWindows.of(size, offset), at)


def sliding(size: int, slide: int) -> Kind:
    def at(time: int) -> list[Span]:
        starts = [start for start in range(time - size - slide, time + 1) if start % slide == 0]
        return [(start, start + size) for start in starts if start <= time < start + size]

    return Kind(f"sliding({size}, {slide})", SlidingEventTimeWindows.of(size, slide), at)


def cumulating(step: int, steps: int) -> Kind:
    def at(time: int) -> list[Span]:
        start = time - time % (step * steps)
        return [(start, start + n * step) for n in range(1, steps + 1) if start + n * step > time]

    return Kind(f"cumulating({step}, {steps})", CumulativeEventTimeWindows.of(step * steps, step), at)


def sessions(gap: int) -> Kind:
    return Kind(
        f"sessions({gap})", EventTimeSessionWindows.with_gap(gap), lambda time: [(time, time + gap)], merges=True
    )


def dynamic(most: int) -> Kind:
    # The gap depends only on the element's time, to simplify the model.
    def gap(time: int) -> int:
        return 1 + time % most

    assigner = EventTimeSessionWindows.with_dynamic_gap(lambda record: gap(record[2]))
    return Kind(f"dynamic({most})", assigner, lambda time: [(time, time + gap(time))], merges=True)


kinds = st.one_of(
    st.builds(tumbling, st.integers(1, 20), st.integers(0, 0)),
    st.builds(sliding, st.integers(1, 20), st.integers(1, 12)),
    st.builds(cumulating, st.integers(1, 5), st.integers(1, 5)),
    st.builds(sessions, st.integers(1, 12)),
    st.builds(dynamic, st.integers(1, 12)),
)


@dataclass
class Model:
    kind: Kind
    lateness: int
    watermark: int = -(2**63)
    open: dict[Any, dict[Span, list[Any]]] = field(default_factory=dict)
    late: list[Any] = field(default_factory=list)

    def is_over(self, end: int) -> bool:
        return end - 1 + self.lateness <= self.watermark

    def add(self, key: Any, value: Any, time: int) -> list[Any]:
        fired = []
        is_added = False
        windows = self.open.setdefault(key, {})
        for assigned in self.kind.windows_at(time):
            window, content = self.met(windows, assigned) if self.kind.merges else (assigned, [])
            if self.is_over(window[1]):
                continue
            is_added = True
            windows[window] = [*windows.get(window, []), *content, value]
            if window[1] - 1 <= self.watermark:
                fired.append((key, window, sorted(windows[window])))
        if not is_added and time + self.lateness <= self.watermark:
            self.late.append(value)
        return fired

    def met(self, windows: dict[Span, list[Any]], window: tuple[int, int]) -> tuple[tuple[int, int], list[Any]]:
        start, end = window
        content: list[Any] = []
        while met := [other for other in windows if other[0] <= end and start <= other[1]]:
            start, end = min(start, *(o[0] for o in met)), max(end, *(o[1] for o in met))
            content += [element for other in met for element in windows.pop(other)]
        return (start, end), content

    def advance(self, watermark: int) -> list[Any]:
        before, self.watermark = self.watermark, watermark
        fired = []
        for key, windows in self.open.items():
            for (start, end), content in list(windows.items()):
                if before < end - 1 <= watermark:
                    fired.append((key, (start, end), sorted(content)))
                if self.is_over(end):
                    del windows[start, end]
        return fired


steps = st.lists(
    st.one_of(
        st.tuples(st.just("records"), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=6)),
        st.tuples(st.just("watermark"), st.integers(0, 70)),
        st.just(("restart", None)),
        st.just(("epoch", None)),
    ),
    max_size=25,
)


def by_window(fired: list[Any]) -> list[Any]:
    return sorted((key, window, sorted(values)) for key, window, values in fired)


class Spread(AggregateFunction):
    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return (*accumulator, value[1])

    def get_result(self, accumulator):
        return (None, sorted(accumulator))

    def merge(self, accumulator, other):
        return accumulator + other


class Changing(Spread):
    """Like ``Spread``, but with mutable accumulators. A merge changes both accumulators."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator):
        return (None, sorted(accumulator))

    def merge(self, accumulator, other):
        accumulator.extend(other)
        other.append("used up")
        return accumulator


class Named(Contents):
    def process(self, key, context, elements):
        ((_, values),) = elements
        yield key, tuple(context.window()), values


ACCUMULATORS = {"aggregate": Spread(), "changing": Changing()}


def operator_of(kind: Kind, how: str) -> type:
    if how == "process":
        return WindowOperator
    if kind.merges:
        return SessionWindowOperator
    return TumblingWindowOperator if kind.name.startswith("tumbling") else PaneWindowOperator


def build_windows(stream: Any, kind: Kind, how: str, lateness: int, tagged: bool) -> Any:
    windows = stream.window(kind.assigner).allowed_lateness(lateness)
    if tagged:
        windows = windows.side_output_late_data(LATE)
    if how == "process":
        return windows.process(Whole())
    if how in ACCUMULATORS:
        return windows.aggregate(ACCUMULATORS[how], Named())
    # Pairs are folded as (key, list of values, time): the first element is unchanged.
    return windows.reduce(lambda window, other: (window[0], listed(window[1]) + listed(other[1]), window[2]), Folded())


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Folded(Contents):
    def process(self, key, context, elements):
        ((_, values, _),) = elements
        yield key, tuple(context.window()), listed(values)


class Whole(Contents):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), [value for _, value, _ in elements]


@given(kinds, st.sampled_from(["process", "aggregate", "changing", "reduce"]), st.integers(0, 10), st.booleans(), steps)
def test_windows_do_what_the_model_does(kind, how, lateness, tagged, steps):
    def build(stream):
        return build_windows(stream, kind, how, lateness, tagged)

    model = Model(kind, lateness)
    harness = open_windows(build)
    assert type(harness.operator) is operator_of(kind, how)
    dropped = late = 0
    number = 0
    try:
        for what, content in steps:
            harness.clear_output()
            expected: list[Any] = []
            lates = len(model.late)
            if what == "restart":
                snapshot = harness.snapshot()
                dropped += harness.operator.context.counters[LATE_RECORDS_DROPPED]
                harness.close()
                harness = open_windows(build, snapshot=snapshot)
            elif what == "epoch":
                harness.snapshot()
                dropped += harness.operator.context.counters[LATE_RECORDS_DROPPED]
            elif what == "watermark":
                if content < model.watermark:
                    continue
                harness.push_watermark(content)
                expected = model.advance(content)
            else:
                records = []
                for key, time in content:
                    number += 1
                    records.append((key, number, time))
                    expected += model.add(key, number, time)
                for run in (records[: len(records) // 2], records[len(records) // 2 :]):
                    harness.push_all(run, [time for _, _, time in run])
            assert by_window(harness.get_output()) == by_window(expected)
            if tagged:
                side = harness.get_side_output(LATE)
                assert [value for _, value, _ in side] == model.late[lates:]
                late += len(side)
        harness.snapshot()
        dropped += harness.operator.context.counters[LATE_RECORDS_DROPPED]
        assert (late, dropped) == ((len(model.late), 0) if tagged else (0, len(model.late)))
        harness.clear_output()
        harness.push_watermark(10**6)
        assert by_window(harness.get_output()) == by_window(model.advance(10**6))
        # Ended windows leave no state.
        harness.snapshot()
        assert harness.num_event_time_timers() == 0
        assert list(harness._backend.get_keys()) == []
    finally:
        harness.close()
