"""Joins and rules beside the program of the fault tests: both streams of each are parts of the one that is read.

Even events are joined with odd ones that are near in time. Each third event waits for its time, and is told which rule
is in force then; rules are events, too, and go to all subtasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from pillarbox import (
    DataStream,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    RuntimeContext,
)
from tests.faults.programs.job import Faults, Out

__all__ = ["BOUNDS", "JOINED", "LOWER", "UPPER", "Joined", "is_left", "is_right", "is_rule", "is_ruled", "joins"]

# Milliseconds. Records come up to 15 seconds later than event time: some are late.
LOWER, UPPER = -2_000, 3_000
# With every sign. Where the upper one is negative, a row may be past all its partners when it comes, and event time
# need not advance in that epoch.
BOUNDS = ((LOWER, UPPER), (-12_000, -5_000), (4_000, 9_000), (-6_000, 0), (0, 5_000), (0, 0))


class Joined(NamedTuple):
    """How the joins of a program join.

    Attributes:
        bounds: one of `BOUNDS`.
        how: the kind of a join by columns.
    """

    bounds: tuple[int, int] = BOUNDS[0]
    how: Literal["inner", "left"] = "left"


JOINED = Joined()

RULES, ALL_RULES = MapStateDescriptor[int, int]("rules"), MapStateDescriptor[int, int]("all rules")
LATE_LEFT, LATE_RIGHT = OutputTag("late left"), OutputTag("late right")


def is_left(event: Any) -> bool:
    return bool(event.id % 2 == 0)


def is_right(event: Any) -> bool:
    return bool(event.id % 2 == 1)


def is_rule(event: Any) -> bool:
    return bool(event.id % 23 == 0)


def is_ruled(event: Any) -> bool:
    return bool(event.id % 3 == 0)


class Near(ProcessJoinFunction):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[Out]:
        self.faults.pass_by("pair", (left.id, right.id))
        yield Out(7, left.key, ctx.timestamp(), json.dumps([left.id, right.id]), os.getpid(), self.subtask)


def late(event: Any) -> Out:
    return Out(8, event.key, event.ts, json.dumps(event.id), os.getpid(), 0)


class Ruled(KeyedBroadcastProcessFunction):
    """Tells of each event the rule that is in force at its time, and all rules that there are up to then.

    The former is found in broadcast state, from which rules go that are in force no more. The latter are in the state
    of each key: a new key copies them, and a new rule is added to all keys. So the order within an epoch does not show.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
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
        ctx.apply_to_keyed_state(MapStateDescriptor("known"), lambda key, known: known.put(rule.id, rule.ts))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Out]:
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
        yield Out(9, key, timestamp, json.dumps(state), os.getpid(), self.subtask)


def joins(stamped: DataStream, faults: Faults, joined: Joined = JOINED) -> list[DataStream]:
    """Return what comes of pairs and rules, and what is too late for a pair."""
    near = (
        stamped.filter(is_left)
        .key_by("key")
        .interval_join(stamped.filter(is_right).key_by("key"))
        .between(*joined.bounds)
        .side_output_left_late_data(LATE_LEFT)
        .side_output_right_late_data(LATE_RIGHT)
    )
    pairs = near.process(Near(faults)).uid("pairs")
    rules = stamped.filter(is_rule).broadcast(RULES, ALL_RULES)
    return [
        pairs,
        pairs.get_side_output(LATE_LEFT).map(late),
        pairs.get_side_output(LATE_RIGHT).map(late),
        stamped.filter(is_ruled).key_by("key").connect(rules).process(Ruled(faults)).uid("ruled"),
    ]
