"""Two-stream operators for ``make chaos``, except joins.

Events with even ids are connected to events with odd ids, in any order. Output may therefore depend only on each stream
alone, or on the records that are present when event time advances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    ValueStateDescriptor,
)
from tests.faults.parts.joins import is_left, is_right
from tests.faults.parts.part import Model, OutputRow, Part
from tests.faults.parts.windows import id_of
from tests.faults.programs.job import Event, Faults

__all__ = ["BALANCE", "HELD", "KNOWN", "SIDES", "TURNS"]


def sides_of(events: DataStream) -> Any:
    return events.filter(is_left).connect(events.filter(is_right))


# -- map --


def is_dropped(event: Any) -> bool:
    return bool(event.id % 3 == 0)


class Sides(CoMapFunction):
    """Emits each record with the name of its stream, except some records of the second stream. Needs no key."""

    def map1(self, left: Any) -> OutputRow:
        return OutputRow(left.key, left.ts, ["left", left.id])

    def map2(self, right: Any) -> OutputRow | None:
        return None if is_dropped(right) else OutputRow(right.key, right.ts, ["right", right.id])


class SidesModel(Model):
    def record(self, event: Event) -> None:
        if is_left(event) or not is_dropped(event):
            self.say(event.key, event.ts, ["left" if is_left(event) else "right", event.id])


SIDES = Part("sides", lambda events, faults: sides_of(events).map(Sides()), SidesModel, has_state=False)


# -- flat map, by key --


class Turns(CoFlatMapFunction):
    """Emits every second record of the first stream, and each record of the second stream three times."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.lefts = runtime_context.get_state(ValueStateDescriptor[int]("lefts"))
        self.rights = runtime_context.get_list_state(ListStateDescriptor[int]("rights"))

    def flat_map1(self, left: Any) -> list[OutputRow] | None:
        count = (self.lefts.value() or 0) + 1
        self.lefts.update(count)
        return [OutputRow(left.key, left.ts, [left.id, count])] if count % 2 == 0 else None

    def flat_map2(self, right: Any) -> Iterator[OutputRow]:
        self.rights.add(right.id)
        results = list(self.rights.get())
        if len(results) == 3:
            self.rights.clear()
            for index, number in enumerate(results):
                yield OutputRow(right.key, right.ts, [number, index])


class TurnsModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._lefts: defaultdict[int, int] = defaultdict(int)
        self._rights: defaultdict[int, list[int]] = defaultdict(list)

    def record(self, event: Event) -> None:
        if is_left(event):
            self._lefts[event.key] += 1
            if self._lefts[event.key] % 2 == 0:
                self.say(event.key, event.ts, [event.id, self._lefts[event.key]])
            return
        self._rights[event.key].append(event.id)
        if len(self._rights[event.key]) == 3:
            for index, number in enumerate(self._rights.pop(event.key)):
                self.say(event.key, event.ts, [number, index])


TURNS = Part("turns", lambda events, faults: sides_of(events).key_by("key", "key").flat_map(Turns()), TurnsModel)


# -- process, by key --

SPAN = 6_000  # milliseconds between the timers of one side
TAKEN = OutputTag[OutputRow]("taken")


class Balance(KeyedCoProcessFunction):
    """Has separate state and timers for each of two streams. A timer removes earlier records.

    Each timer is a fault point, named by its key and time.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
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
        yield TAKEN, OutputRow(right.key, right.ts, [right.id, count])

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[OutputRow]:
        key = ctx.get_current_key()
        self.faults.pass_by("balance timer", (key, timestamp))
        lefts = sorted(number for number, at in self.lefts.items() if at < timestamp)
        for number in lefts:
            self.lefts.remove(number)
        rights = sorted(number for at, number in self.rights.get() if at < timestamp)
        left = [row for row in self.rights.get() if row[0] >= timestamp]
        self.rights.update(left)
        if not left and self.lefts.is_empty():
            self.rights.clear()
            self.count.clear()
        yield OutputRow(key, timestamp, [lefts, rights])


@dataclass
class _Account:
    lefts: list[Event] = field(default_factory=list)
    rights: list[Event] = field(default_factory=list)
    count: int = 0
    timers: set[int] = field(default_factory=set)


class BalanceModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._accounts: defaultdict[int, _Account] = defaultdict(_Account)

    def record(self, event: Event) -> None:
        account = self._accounts[event.key]
        end = (event.ts // SPAN + 1) * SPAN
        if is_left(event):
            account.lefts.append(event)
            account.timers.add(end)
            return
        account.rights.append(event)
        account.count += 1
        account.timers.add(end + SPAN // 2)
        if account.count % 4 == 0:
            account.timers.remove(end + SPAN // 2)
            account.timers.add(end + SPAN // 2 + SPAN)
        self.say(event.key, event.ts, [event.id, account.count], TAKEN.tag_id)

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        for key, account in self._accounts.items():
            for timestamp in sorted(at for at in account.timers if at <= watermark):
                self._settle(key, account, timestamp)

    def _settle(self, key: int, account: _Account, timestamp: int) -> None:
        account.timers.remove(timestamp)
        self.points["balance timer"].append((key, timestamp))
        sides = account.lefts, account.rights
        self.say(key, timestamp, [sorted(event.id for event in side if event.ts < timestamp) for side in sides])
        account.lefts, account.rights = ([event for event in side if event.ts >= timestamp] for side in sides)
        if not account.lefts and not account.rights:
            account.count = 0


BALANCE = Part(
    "balance",
    lambda events, faults: sides_of(events).key_by("key", "key").process(Balance(faults)),
    BalanceModel,
    sides={TAKEN: None},
)


# -- process, without key --


def is_tick(event: Any) -> bool:
    return bool(event.id % 7 == 0)


class Held(CoProcessFunction, CheckpointedFunction):
    """Keeps records in operator state until event time has advanced and a tick arrives.

    All subtasks receive all ticks, so a record's subtask and position in the epoch do not matter. Each record's id is a
    fault point.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def initialize_state(self, context: Any) -> None:
        self.held = context.get_operator_state_store().get_list_state(ListStateDescriptor("held"))

    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> None:
        self.held.add((ctx.timer_service().current_watermark(), value.id, value.key, value.ts))

    def process_element2(self, tick: Any, ctx: CoProcessFunction.Context) -> Iterator[OutputRow]:
        now = ctx.timer_service().current_watermark()
        due = [row for row in self.held.get() if row[0] < now]
        if due:
            self.held.update([row for row in self.held.get() if row[0] >= now])
        for _, number, key, at in due:
            self.faults.pass_by("released", number)
            yield OutputRow(key, at, number)


class HeldModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[int, Event]] = []

    def record(self, event: Event) -> None:
        if is_tick(event):
            for _, held in (row for row in self._held if row[0] < self.watermark):
                self.say(*id_of(held))
                self.points["released"].append(held.id)
            self._held = [row for row in self._held if row[0] >= self.watermark]
        self._held.append((self.watermark, event))


HELD = Part(
    "held",
    lambda events, faults: events.connect(events.filter(is_tick).broadcast()).process(Held(faults)),
    HeldModel,
)


# -- broadcast state, without key --

NEWEST = 2  # number of newest facts in the output
FACTS = MapStateDescriptor[int, int]("facts")


def is_fact(event: Any) -> bool:
    return bool(event.id % 19 == 0)


class Known(BroadcastProcessFunction):
    """Emits each record with the newest facts before the last advance of event time. Needs no key."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[OutputRow]:
        facts, now = ctx.get_broadcast_state(FACTS), ctx.current_watermark()
        numbers = sorted(number for number, since in facts.items() if since < now)[-NEWEST:]
        yield OutputRow(value.key, value.ts, [value.id, numbers])

    def process_broadcast_element(self, fact: Any, ctx: Any) -> None:
        facts, now = ctx.get_broadcast_state(FACTS), ctx.current_watermark()
        for number in sorted(number for number, since in facts.items() if since < now)[:-NEWEST]:
            facts.remove(number)
        facts.put(fact.id, now)


class KnownModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._facts: dict[int, int] = {}

    def record(self, event: Event) -> None:
        facts = sorted(fact for fact, since in self._facts.items() if since < self.watermark)
        self.say(event.key, event.ts, [event.id, facts[-NEWEST:]])
        if is_fact(event):
            self._facts[event.id] = self.watermark


KNOWN = Part(
    "known",
    lambda events, faults: events.connect(events.filter(is_fact).broadcast(FACTS)).process(Known()),
    KnownModel,
)
