"""Windows beside the program of the fault tests: tumbling ones that keep late records, sliding ones, sessions.

Each operator of windows that there is has a part: that of all elements, that of panes, that of sessions that fold, and
that of tumbling windows that do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from pillarbox import (
    AggregateFunction,
    DataStream,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tests.faults.programs.job import Faults, Out

__all__ = ["GAP", "LATENESS", "SESSION_LATENESS", "SIZE", "SLIDE", "TUMBLING", "windows"]

# Milliseconds. Records come up to 15 seconds later than event time: too late for some windows, late for others.
TUMBLING, LATENESS = 7_000, 8_000
SIZE, SLIDE = 12_000, 5_000
GAP, SESSION_LATENESS = 4_000, 6_000

LATE = OutputTag("late")


class _Says(ProcessWindowFunction):
    """Makes a row of a window."""

    level = 0

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process(self, key: int, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> Iterable[Out]:
        window = context.window()
        self.faults.pass_by("window", (key, window.start))
        state = json.dumps([window.end, *self.contents(elements)])
        yield Out(self.level, key, window.start, state, os.getpid(), self.subtask)

    def contents(self, elements: Iterable[Any]) -> list[int]:
        raise NotImplementedError


class All(_Says):
    level = 3

    def contents(self, elements: Iterable[Any]) -> list[int]:
        return [element.id for element in elements]


class Panes(_Says):
    level = 4

    def contents(self, elements: Iterable[Any]) -> list[int]:
        ((count, total),) = elements
        return [count, total]


class Sessions(Panes):
    level = 5


class Totals(Panes):
    level = 26


class CountAndSum(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value.id

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return one[0] + other[0], one[1] + other[1]


def late(event: Any) -> Out:
    return Out(6, event.key, event.ts, json.dumps(event.id), os.getpid(), 0)


def windows(stamped: DataStream, faults: Faults) -> list[DataStream]:
    """Return what windows of a keyed stream of events give, and what is too late for them."""
    keyed = stamped.key_by("key")
    tumbling = keyed.window(TumblingEventTimeWindows.of(TUMBLING)).allowed_lateness(LATENESS)
    whole = tumbling.side_output_late_data(LATE).process(All(faults)).uid("tumbling")
    sliding = keyed.window(SlidingEventTimeWindows.of(SIZE, SLIDE))
    sessions = keyed.window(EventTimeSessionWindows.with_gap(GAP)).allowed_lateness(SESSION_LATENESS)
    return [
        whole,
        whole.get_side_output(LATE).map(late),
        sliding.aggregate(CountAndSum(), Panes(faults)).uid("sliding"),
        sessions.aggregate(CountAndSum(), Sessions(faults)).uid("sessions"),
        keyed.window(TumblingEventTimeWindows.of(TUMBLING)).aggregate(CountAndSum(), Totals(faults)).uid("totals"),
    ]
