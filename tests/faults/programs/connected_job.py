"""Two streams in one operator, beside the program of the fault tests: all such operators that ``join_job.py`` lacks.

Even events are connected with odd ones. They come in any order, so what comes out depends on each stream by itself, or
on what is there when event time goes on: then all of an epoch is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from pillarbox import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    SlidingEventTimeWindows,
    ValueStateDescriptor,
)
from tests.faults.programs.job import Faults, Out
from tests.faults.programs.join_job import is_left, is_right
from tests.faults.programs.window_job import SIZE, SLIDE

__all__ = ["KNOWN", "SPAN", "connected", "is_dropped", "is_fact", "is_tick"]

SPAN = 6_000  # milliseconds between the timers of one side
KNOWN = 2  # so many facts, the newest ones, are told
FACTS = MapStateDescriptor[int, int]("facts")
TAKEN = OutputTag[Out]("taken")


def is_dropped(event: Any) -> bool:
    return bool(event.id % 3 == 0)


def is_tick(event: Any) -> bool:
    return bool(event.id % 7 == 0)


def is_fact(event: Any) -> bool:
    return bool(event.id % 19 == 0)


class Sides(CoMapFunction):
    """Has no key: tells of each record where it came from, of some of the second stream nothing."""

    def map1(self, left: Any) -> Out:
        return Out(27, left.key, left.ts, json.dumps(["left", left.id]), os.getpid(), 0)

    def map2(self, right: Any) -> Out | None:
        if is_dropped(right):
            return None
        return Out(27, right.key, right.ts, json.dumps(["right", right.id]), os.getpid(), 0)


class Turns(CoFlatMapFunction):
    """Emits each second record of one side; of the other one three at a time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.lefts = runtime_context.get_state(ValueStateDescriptor[int]("lefts"))
        self.rights = runtime_context.get_list_state(ListStateDescriptor[int]("rights"))

    def flat_map1(self, left: Any) -> list[Out] | None:
        count = (self.lefts.value() or 0) + 1
        self.lefts.update(count)
        return [self._out(left, left.id, count)] if count % 2 == 0 else None

    def flat_map2(self, right: Any) -> Iterator[Out]:
        self.rights.add(right.id)
        found = list(self.rights.get())
        if len(found) == 3:
            self.rights.clear()
            for place, number in enumerate(found):
                yield self._out(right, number, place)

    @staticmethod
    def _out(event: Any, *state: int) -> Out:
        return Out(28, event.key, event.ts, json.dumps(state), os.getpid(), 0)


class Balance(KeyedCoProcessFunction):
    """Keeps both sides in state of their own, and timers at times of their own, each of which takes what it is past."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.lefts = runtime_context.get_map_state(MapStateDescriptor[int, int]("lefts"))
        self.rights = runtime_context.get_list_state(ListStateDescriptor[tuple[int, int]]("rights"))
        self.count = runtime_context.get_state(ValueStateDescriptor[int]("count"))

    def process_element1(self, left: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self.lefts.put(left.id, left.ts)
        ctx.timer_service().register_event_time_timer((left.ts // SPAN + 1) * SPAN)

    def process_element2(self, right: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        self.rights.add((right.ts, right.id))
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        at = (right.ts // SPAN + 1) * SPAN + SPAN // 2
        timers = ctx.timer_service()
        timers.register_event_time_timer(at)
        if count % 4 == 0:
            timers.delete_event_time_timer(at)
            timers.register_event_time_timer(at + SPAN)
        yield TAKEN, Out(30, right.key, right.ts, json.dumps([right.id, count]), os.getpid(), self.subtask)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Out]:
        key = ctx.get_current_key()
        self.faults.pass_by("balance timer", (key, timestamp))
        lefts = sorted(number for number, at in self.lefts.items() if at < timestamp)
        for number in lefts:
            self.lefts.remove(number)
        rights = sorted(number for at, number in self.rights.get() if at < timestamp)
        left = [each for each in self.rights.get() if each[0] >= timestamp]
        self.rights.update(left)
        if not left and self.lefts.is_empty():
            self.rights.clear()
            self.count.clear()
        yield Out(29, key, timestamp, json.dumps([lefts, rights]), os.getpid(), self.subtask)


class Held(CoProcessFunction, CheckpointedFunction):
    """Has no key: holds records in state of the subtask's own, until event time has gone on and a tick comes.

    All subtasks get all ticks. So it does not matter which of them has a record, nor when in an epoch it came.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context: Any) -> None:
        self.held = context.get_operator_state_store().get_list_state(ListStateDescriptor("held"))

    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> None:
        self.held.add((ctx.timer_service().current_watermark(), value.id, value.key, value.ts))

    def process_element2(self, tick: Any, ctx: CoProcessFunction.Context) -> Iterator[Out]:
        now = ctx.timer_service().current_watermark()
        due = [each for each in self.held.get() if each[0] < now]
        if due:
            self.held.update([each for each in self.held.get() if each[0] >= now])
        for _, number, key, at in due:
            self.faults.pass_by("released", number)
            yield Out(31, key, at, json.dumps(number), os.getpid(), self.subtask)


class Known(BroadcastProcessFunction):
    """Has no key: tells of each record the newest facts that were there when event time went on last."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Out]:
        facts, now = ctx.get_broadcast_state(FACTS), ctx.current_watermark()
        known = sorted(number for number, since in facts.items() if since < now)[-KNOWN:]
        yield Out(32, value.key, value.ts, json.dumps([value.id, known]), os.getpid(), 0)

    def process_broadcast_element(self, fact: Any, ctx: Any) -> None:
        facts, now = ctx.get_broadcast_state(FACTS), ctx.current_watermark()
        for number in sorted(number for number, since in facts.items() if since < now)[:-KNOWN]:
            facts.remove(number)
        facts.put(fact.id, now)


def both(lefts: Iterable[Any], rights: Iterable[Any]) -> list[Out]:
    """Return the row of a window, which may have records of one side only."""
    sides = [sorted((event.id, event.key, event.ts) for event in side) for side in (lefts, rights)]
    key = next(key for side in sides for _, key, _ in side)
    first = min(at for side in sides for *_, at in side)
    return [Out(33, key, first, json.dumps([[number for number, *_ in side] for side in sides]), os.getpid(), 0)]


def connected(stamped: DataStream, faults: Faults) -> list[DataStream]:
    """Return what comes of events that are connected, co-grouped, or told what has been broadcast."""
    lefts, rights = stamped.filter(is_left), stamped.filter(is_right)
    by_key = lefts.connect(rights).key_by("key", "key")
    balance = by_key.process(Balance(faults)).uid("balance")
    windows = lefts.co_group(rights).where("key").equal_to("key").window(SlidingEventTimeWindows.of(SIZE, SLIDE))
    return [
        lefts.connect(rights).map(Sides()),
        by_key.flat_map(Turns()).uid("turns"),
        balance,
        balance.get_side_output(TAKEN),
        stamped.connect(stamped.filter(is_tick).broadcast()).process(Held(faults)).uid("held"),
        stamped.connect(stamped.filter(is_fact).broadcast(FACTS)).process(Known()).uid("known"),
        windows.apply(both).uid("both"),
    ]
