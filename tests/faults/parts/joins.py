"""Joins, broadcast rules and co-groups for ``make chaos``. All streams are parts of one input.

Events with even ids are joined with odd events of close event times or of the same window. Every third event waits for
event time, and is emitted with the rule in force then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from pillarbox import (
    DataStream,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
)
from tests.faults.parts.part import Joined, Model, OutputRow, Part
from tests.faults.parts.windows import SIZE, SLIDE, WindowsModel, id_of
from tests.faults.programs.job import Event, Faults

__all__ = ["BOTH", "LATE_LEFT", "LATE_RIGHT", "RULED", "JoinModel", "is_left", "is_right", "pairs_of"]

LATE_LEFT: OutputTag[Any] = OutputTag("late left")
LATE_RIGHT: OutputTag[Any] = OutputTag("late right")


def is_left(event: Any) -> bool:
    return bool(event.id % 2 == 0)


def is_right(event: Any) -> bool:
    return bool(event.id % 2 == 1)


# -- interval join --


class Near(ProcessJoinFunction):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[OutputRow]:
        self.faults.pass_by("pair", (left.id, right.id))
        yield OutputRow(left.key, ctx.timestamp(), [left.id, right.id])


def pairs(joined: Joined, events: DataStream, faults: Faults) -> DataStream:
    left, right = (events.filter(side).key_by("key") for side in (is_left, is_right))
    near = left.interval_join(right).between(*joined.bounds)
    return near.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT).process(Near(faults))


class JoinModel(Model):
    """A model of a join: all records that were not late. Each pair of ids is a fault point."""

    def __init__(self, joined: Joined) -> None:
        super().__init__()
        self._bounds = joined.bounds
        self._lefts: defaultdict[int, list[Event]] = defaultdict(list)
        self._rights: defaultdict[int, list[Event]] = defaultdict(list)

    def record(self, event: Event) -> None:
        if event.ts < self.watermark:
            self.say(*id_of(event), side=(LATE_LEFT if is_left(event) else LATE_RIGHT).tag_id)
            return
        if is_left(event):
            self._lefts[event.key].append(event)
            results = [(event, right) for right in self._rights[event.key]]
        else:
            self._rights[event.key].append(event)
            results = [(left, event) for left in self._lefts[event.key]]
        for left, right in results:
            if self._bounds[0] <= right.ts - left.ts <= self._bounds[1]:
                self.pair(left, right)

    def pair(self, left: Event, right: Event) -> None:
        self.points["pair"].append((left.id, right.id))
        self.say(left.key, max(left.ts, right.ts), [left.id, right.id])


def pairs_of(joined: Joined = Joined()) -> Part:  # noqa: B008
    sides = dict.fromkeys((LATE_LEFT, LATE_RIGHT), id_of)
    return Part("pairs", partial(pairs, joined), partial(JoinModel, joined), sides=sides, of=pairs_of)


# -- windows of both --


def both(lefts: Iterable[Any], rights: Iterable[Any]) -> list[OutputRow]:
    sides = [sorted((event.id, event.key, event.ts) for event in side) for side in (lefts, rights)]
    key = next(key for side in sides for _, key, _ in side)
    first = min(at for side in sides for *_, at in side)
    return [OutputRow(key, first, [[number for number, *_ in side] for side in sides])]


def windows_of_both(events: DataStream, faults: Faults) -> DataStream:
    pair = events.filter(is_left).co_group(events.filter(is_right)).where("key").equal_to("key")
    return pair.window(SlidingEventTimeWindows.of(SIZE, SLIDE)).apply(both)


class BothModel(WindowsModel):
    def fire(self, key: int, start: int, events: list[Event]) -> None:
        sides = [sorted(event.id for event in events if is_left(event) == side) for side in (True, False)]
        self.say(key, min(event.ts for event in events), sides)


BOTH = Part("both", windows_of_both, partial(BothModel, SIZE, SLIDE))


# -- rules --

RULES, ALL_RULES = MapStateDescriptor[int, int]("rules"), MapStateDescriptor[int, int]("all rules")


def is_rule(event: Any) -> bool:
    return bool(event.id % 23 == 0)


def is_ruled(event: Any) -> bool:
    return bool(event.id % 3 == 0)


class Ruled(KeyedBroadcastProcessFunction):
    """Emits each event with the rule in force at its time, and with all earlier rules.

    Broadcast state contains the rule in force and later rules. Each key's state contains all rules: a new key copies
    them, and a new rule is added to all keys. The order of events within an epoch therefore does not matter.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting"))
        self.known = runtime_context.get_map_state(MapStateDescriptor("known"))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.known.is_empty():
            self.known.put(-1, -1)  # the key is there, though there may be no rule
            for number, at in ctx.get_broadcast_state(ALL_RULES).items():
                self.known.put(number, at)
        self.waiting.add((value.ts, value.id))
        ctx.timer_service().register_event_time_timer(value.ts)

    def process_broadcast_element(self, rule: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(rule.ts, max(rule.id, rules.get(rule.ts) or 0))
        ctx.get_broadcast_state(ALL_RULES).put(rule.id, rule.ts)
        for at in sorted(at for at in rules if at <= ctx.current_watermark())[:-1]:
            rules.remove(at)
        self.faults.pass_by("rule", rule.id)
        ctx.apply_to_keyed_state(MapStateDescriptor("known"), lambda key, state: state.put(rule.id, rule.ts))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[OutputRow]:
        key = ctx.get_current_key()
        self.faults.pass_by("rule timer", (key, timestamp))
        rules = ctx.get_broadcast_state(RULES)
        in_force = max((at for at in rules if at <= timestamp), default=None)
        state = [
            sorted(number for at, number in self.waiting if at == timestamp),
            None if in_force is None else rules[in_force],
            sorted(number for number, at in self.known.items() if 0 <= at <= timestamp),
        ]
        left = [(at, number) for at, number in self.waiting if at != timestamp]
        self.waiting.update(left)
        if not left:
            self.waiting.clear()
            self.known.clear()
        yield OutputRow(key, timestamp, state)


def ruled(events: DataStream, faults: Faults) -> DataStream:
    rules = events.filter(is_rule).broadcast(RULES, ALL_RULES)
    return events.filter(is_ruled).key_by("key").connect(rules).process(Ruled(faults))


class RuledModel(Model):
    """A model of `Ruled`: all rules, and the events that wait for event time.

    Fault points are rules (by id) and waiting events (by key and time).
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_force: dict[int, int] = {}
        self._all_rules: list[Event] = []
        self._waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    def record(self, event: Event) -> None:
        if is_ruled(event):
            self._waiting[event.key, event.ts].append(event.id)
        if is_rule(event):
            self.points["rule"].append(event.id)
            self._all_rules.append(event)
            self._in_force[event.ts] = max(event.id, self._in_force.get(event.ts, 0))
            for at in sorted(at for at in self._in_force if at <= self.watermark)[:-1]:
                del self._in_force[at]

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        for key, at in sorted(waiting for waiting in self._waiting if waiting[1] <= watermark):
            rule = max((since for since in self._in_force if since <= at), default=None)
            state = [
                sorted(self._waiting.pop((key, at))),
                None if rule is None else self._in_force[rule],
                sorted(rule.id for rule in self._all_rules if rule.ts <= at),
            ]
            self.points["rule timer"].append((key, at))
            self.say(key, at, state)


RULED = Part("ruled", ruled, RuledModel)
