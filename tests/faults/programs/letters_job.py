"""Dead letters beside the program of the fault tests: functions that refuse records when they are nearly done.

Under keys it is the ledger of that program, with each kind of state and timers; it refuses timers, too. Another one
has no key. Windows refuse records, and some are refused as a whole. So what comes out is right only if nothing is left
of what was done for a record before it was refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from pillarbox import (
    DataStream,
    DeadLetter,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
)
from tests.faults.programs.job import MINUTE, NO_FAULTS, Faults, Ledger, Out
from tests.faults.programs.window_job import TUMBLING, CountAndSum

__all__ = ["is_odd_one", "is_refused", "is_refused_timer", "is_spoilt", "is_unfit", "letters"]

SEEN = OutputTag[Out]("seen")
REFUSED, ODD_ONES = OutputTag[DeadLetter]("refused"), OutputTag[DeadLetter]("odd ones")
SPOILT = OutputTag[DeadLetter]("spoilt")


def is_refused(event: Any) -> bool:
    return bool(event.id % 5 == 3)


def is_refused_timer(timestamp: int) -> bool:
    return timestamp // MINUTE % 3 == 2  # not that at which each key shows its state


def is_odd_one(event: Any) -> bool:
    return bool(event.id % 7 == 2)


def is_unfit(event: Any) -> bool:
    return bool(event.id % 13 == 4)


def is_spoilt(total: int) -> bool:
    return total % 3 == 1


class Strict(Ledger):
    """A ledger that refuses some records and timers: what it said of them on a side output goes, too."""

    level = 18

    def __init__(self, faults: Faults) -> None:
        super().__init__(NO_FAULTS)  # an error that is raised here fails nothing
        self.kills = faults

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        ctx.output(SEEN, Out(19, value.key, value.ts, json.dumps(value.id), os.getpid(), self.subtask))
        out = super().process_element(value, ctx)
        if is_refused(value):
            self.kills.pass_by("letter", value.id)
            raise ValueError(f"{value.id} is refused")
        return out

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        out = super().on_timer(timestamp, ctx)
        self.kills.pass_by("letter timer", (ctx.get_current_key(), timestamp))
        if is_refused_timer(timestamp):
            raise ValueError(f"the timer at {timestamp} is refused")
        return out


class Halves(ProcessFunction):
    """Emits each event in two parts, between which it may fail."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        for part in (1, 2):
            yield Out(22, value.key, value.ts, json.dumps([value.id, part]), os.getpid(), 0)
            if is_odd_one(value):
                raise LookupError(f"{value.id} has one part")


class Picky(CountAndSum):
    """Refuses some records."""

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        added = super().add(value, accumulator)
        if is_unfit(value):
            raise KeyError(value.id)
        return added


class Whole(ProcessWindowFunction):
    """Refuses some windows."""

    def process(self, key: int, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> Iterator[Out]:
        ((count, total),) = elements
        yield Out(39, key, context.window().start, json.dumps([count, total]), os.getpid(), 0)
        if is_spoilt(total):
            raise ArithmeticError(f"{total} is refused")


def refused(letter: DeadLetter) -> Out:
    """Return the row of a letter that has a key."""
    timer = None if letter.timer is None else letter.timer.value
    number = None if letter.value is None else letter.value.id
    return _row(23, letter.key, letter, [number, timer, letter.operator, letter.error])


def odd_one(letter: DeadLetter) -> Out:
    """Return the row of a letter that has none."""
    return _row(24, letter.value.key, letter, [letter.value.id, letter.key, letter.operator, letter.error])


def spoilt(letter: DeadLetter) -> Out:
    """Return the row of a letter of windows: of a record, or of what a window had folded."""
    state = list(letter.value) if type(letter.value) is tuple else letter.value.id
    return _row(40, letter.key, letter, [state, letter.operator, letter.error])


def _row(level: int, key: int, letter: DeadLetter, state: list[Any]) -> Out:
    assert letter.timestamp is not None
    where = "letters_job.py" in letter.traceback
    return Out(level, key, letter.timestamp, json.dumps([*state, where]), os.getpid(), 0)


def letters(stamped: DataStream, faults: Faults) -> list[DataStream]:
    """Return what comes of the records that are not refused, and the letters of those that are."""
    strict = stamped.key_by("key").process(Strict(faults), on_error=REFUSED).uid("strict").name("strict")
    halves = stamped.process(Halves(), on_error=ODD_ONES).name("halves")
    windows = stamped.key_by("key").window(TumblingEventTimeWindows.of(TUMBLING)).side_output_errors(SPOILT)
    whole = windows.aggregate(Picky(), Whole()).uid("picky").name("picky")
    return [
        strict,
        strict.get_side_output(SEEN),
        strict.get_side_output(REFUSED).map(refused),
        halves,
        halves.get_side_output(ODD_ONES).map(odd_one),
        whole,
        whole.get_side_output(SPOILT).map(spoilt),
    ]
