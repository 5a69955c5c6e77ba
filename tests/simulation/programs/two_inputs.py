"""Programs with two streams (connected streams, joins, broadcast state), or with partitioning other than by key.

The order of two streams within an epoch is undefined, so no outcome depends on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tests.simulation import oracles
from tests.simulation.programs.program import FAR, LETTERS, SUBTASKS, Inputs, SimulatedProgram, keyed_events, of_events
from tests.support.programs import LATE, Tumbling, bounded, first, monotonous

RULES = MapStateDescriptor("rules")
LATEST = MapStateDescriptor("latest")
SIDE = OutputTag("side")
LATE_LEFT, LATE_RIGHT = OutputTag("late left"), OutputTag("late right")


def third(value: Any) -> Any:
    return value[2]


def together(value: Any) -> Any:
    return 0


def two_streams(rng: random.Random) -> Inputs:
    return {"lefts": keyed_events(rng, most=40), "rights": keyed_events(rng, most=40)}


def of_one_key(rng: random.Random) -> Inputs:
    return {name: [("a", rng.randrange(500), number) for number in range(80)] for name in ("lefts", "rights")}


LAST = {"lefts": [("z", FAR, 0)], "rights": [("z", FAR, 0)]}


def timed(*streams: Any, bound: int = 100) -> list[Any]:
    return [stream.assign_timestamps_and_watermarks(bounded(bound)) for stream in streams]


# --- connected streams ---


class Balance(KeyedCoProcessFunction):
    """Adds up both streams. Timers of either stream read and clear the sum."""

    def open(self, runtime_context):
        self.paid_in = runtime_context.get_map_state(MapStateDescriptor("in"))
        self.paid_out = runtime_context.get_list_state(ListStateDescriptor("out"))

    def process_element1(self, value, ctx):
        self.paid_in.put(value[2], value[1])
        ctx.timer_service().register_event_time_timer(value[1] // 100 * 100 + 150)

    def process_element2(self, value, ctx):
        self.paid_out.add(value)
        ctx.timer_service().register_event_time_timer(value[1] // 70 * 70 + 150)
        yield SIDE, (value[0], ctx.timestamp())

    def on_timer(self, timestamp, ctx):
        # Only values that event time has passed: others may or may not have arrived.
        gone = sorted(number for number, at in self.paid_in.items() if at <= timestamp)
        for number in gone:
            self.paid_in.remove(number)
        out = sorted(value[2] for value in self.paid_out if value[1] <= timestamp)
        self.paid_out.update([value for value in self.paid_out if value[1] > timestamp])
        yield ctx.get_current_key(), timestamp, gone, out


def connected_by_key(env, lefts, rights):
    left, right = timed(lefts, rights)
    both = left.connect(right).key_by(first, lambda value: value[0]).process(Balance())
    return {"balances": both, "side": both.get_side_output(SIDE)}


class Either(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value[0], ctx.timestamp(), 2 * value[2]

    def process_element2(self, value, ctx):
        if value[2] % 3 == 0:
            ctx.output(SIDE, value)
        else:
            yield value[0], ctx.timestamp(), 1 - 2 * value[2]


def connected_without_key(env, lefts, rights):
    left, right = timed(lefts, rights)
    both = left.connect(right).process(Either())
    sums = both.key_by(first).process(Tumbling())
    late = sums.get_side_output(LATE).map(lambda value: ("late", value))
    return {"sums": sums.union(late), "side": both.get_side_output(SIDE)}


class Odd(CoMapFunction):
    def map1(self, value):
        return (*value, "left") if value[2] % 2 else None

    def map2(self, value):
        return (*value, "right") if value[2] % 2 else None


class Blocked(CoFlatMapFunction):
    """Emits a number when it occurs for the second time in both streams together."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen"))

    def flat_map1(self, value):
        return self._mentioned(value)

    def flat_map2(self, value):
        return self._mentioned(value)

    def _mentioned(self, value):
        count = (self.seen.get(value[2] % 9) or 0) + 1
        self.seen.put(value[2] % 9, count)
        return [(value[0], value[2] % 9)] if count == 2 else []


def co_map_and_flat_map(env, lefts, rights):
    odd = lefts.connect(rights).map(Odd())
    return odd.key_by(first).connect(rights.key_by(first)).flat_map(Blocked())


# --- joins ---


def near(lower: int, upper: int, bound: int = 100) -> Callable[..., Any]:
    def build(env, lefts, rights):
        left, right = (stream.key_by(first) for stream in timed(lefts, rights, bound=bound))
        return left.interval_join(right).between(lower, upper).process(lambda a, b, ctx: [(a, b, ctx.timestamp())])

    return build


def near_and_late(env, lefts, rights):
    left, right = (stream.assign_timestamps_and_watermarks(monotonous()).key_by(first) for stream in (lefts, rights))
    near = left.interval_join(right).between(-200, 300).side_output_left_late_data(LATE_LEFT)
    pairs = near.side_output_right_late_data(LATE_RIGHT).process(lambda a, b, ctx: [(a, b)])
    late = [pairs.get_side_output(tag).map(lambda value: ("late", value)) for tag in (LATE_LEFT, LATE_RIGHT)]
    return pairs.union(*late)


def joins_of_joins(env, lefts, rights):
    left, right = timed(lefts, rights)
    pairs = left.key_by(first).interval_join(right.key_by(first)).between(-30, 90)
    times = pairs.process(lambda a, b, ctx: [(a[0], ctx.timestamp(), 100 * a[2] + b[2])])
    again = times.key_by(lambda value: value[2] % 3).interval_join(left.key_by(lambda value: value[2] % 3))
    return again.between(-100, 100).process(lambda a, b, ctx: [(a, b, ctx.timestamp())])


def numbers_of_both(left_values: Any, right_values: Any) -> list[Any]:
    return [(sorted(value[2] for value in left_values), sorted(two[2] for two in right_values))]


def windows_of_both(env, lefts, rights):
    left, right = timed(lefts, rights)

    def keyed(pair):
        return pair.where(first).equal_to(first)

    return {
        "joined": keyed(left.join(right)).window(SlidingEventTimeWindows.of(80, 30)).apply(lambda a, b: (a, b)),
        "grouped": keyed(left.co_group(right)).window(TumblingEventTimeWindows.of(90)).apply(numbers_of_both),
        "sessions": keyed(left.co_group(right)).window(EventTimeSessionWindows.with_gap(40)).apply(numbers_of_both),
    }


# --- broadcast state ---


class Versions(KeyedBroadcastProcessFunction):
    """Emits each payment with the rule in force at its time, when event time reaches it.

    A rule is added to the state of all existing keys, and a new key copies all rules. So each key has all rules in any
    order of arrival.
    """

    def open(self, runtime_context):
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting"))
        self.known = runtime_context.get_map_state(MapStateDescriptor("known"))

    def process_element(self, payment, ctx):
        if self.known.is_empty():
            self.known.put(-1, -1)  # the key is there, though there is no rule
            for at, number in ctx.get_broadcast_state(LATEST).items():
                self.known.put(number, at)
        self.waiting.add(payment)
        ctx.timer_service().register_event_time_timer(payment[1])

    def process_broadcast_element(self, rule, ctx):
        _, at, number = rule
        rules, latest = ctx.get_broadcast_state(RULES), ctx.get_broadcast_state(LATEST)
        latest.put(at, number)
        rules.put(at, number)
        # Rules that can never be in force again.
        over = sorted(rule for rule in rules if rule <= ctx.current_watermark())[:-1]
        for expired in over:
            rules.remove(expired)
        ctx.apply_to_keyed_state(MapStateDescriptor("known"), lambda key, state: state.put(number, at))
        yield SIDE, number

    def on_timer(self, timestamp, ctx):
        due = sorted(payment[2] for payment in self.waiting if payment[1] == timestamp)
        rules = ctx.get_broadcast_state(RULES)
        in_force = max((at for at in rules if at <= timestamp), default=None)
        numbers = sorted(number for number, at in self.known.items() if at <= timestamp)
        yield ctx.get_current_key(), timestamp, due, in_force, in_force is not None and rules[in_force], numbers
        left = [payment for payment in self.waiting if payment[1] != timestamp]
        self.waiting.update(left)
        if not left:
            self.waiting.clear()
            self.known.clear()


def payments_and_rules(rng: random.Random) -> Inputs:
    times = sorted(rng.sample(range(1500), rng.randrange(12)))  # no two rules at one time
    return {"payments": keyed_events(rng), "rules": [("rule", at, number) for number, at in enumerate(times)]}


def rules_by_time(env, payments, rules):
    keyed, control = timed(payments, rules)
    out = keyed.key_by(first).connect(control.broadcast(RULES, LATEST)).process(Versions())
    return {"payments": out, "side": out.get_side_output(SIDE)}


def of_payments(name: str, values: Sequence[Any]) -> Sequence[Any]:
    # Each subtask reports each rule, and in batch mode the number of subtasks is random.
    return [] if name == "side" else values


# Some of them reach every subtask, however many there are.
ASKING = [("ask", FAR, number) for number in range(12)]


class Listed(BroadcastProcessFunction):
    """Emits the broadcast state at an "ask" record."""

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value, ctx):
        if value[0] == "ask":
            yield "state", self.subtask, tuple(ctx.get_broadcast_state(RULES).items())
        else:
            yield value

    def process_broadcast_element(self, rule, ctx):
        key, _, number = rule
        state = ctx.get_broadcast_state(RULES)
        if number % 11 == 7:
            state.clear()
        elif number % 5 == 4:
            state.remove(key)
        else:
            state.put(key, [*(state.get(key) or ()), number])
        yield "rule", self.subtask, number, len(list(state))


def listed(env, events, rules):
    return events.connect(rules.broadcast(RULES)).process(Listed())


def told_once(name: str, values: Any) -> Any:
    states = {repr(value[2]) for value in values if value[0] == "state"}
    return [*(value for value in values if value[0] != "state"), *states]


# --- spreading ---


class Where(MapFunction):
    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        return value, self.subtask


def same(value: Any) -> Any:
    return value


def spread(env, events):
    stamped = events.assign_timestamps_and_watermarks(bounded(100))
    rescaled = stamped.rescale().map(same).forward().map(same).key_by(first)
    return {
        "custom": stamped.partition_custom(lambda key, n: ord(key) % n, first).map(Where()),
        "global": stamped.shuffle().map(same).global_().map(Where()),
        "broadcast": stamped.broadcast().map(Where()),
        "sums": rescaled.process(Tumbling()),
        "running": rescaled.sum(2),
    }


def extremes(env, events):
    keyed = events.key_by(first)
    return {"min_by": keyed.min_by(1), "max": keyed.max(1), "sum": keyed.sum(2)}


def of_two_streams(build: Callable[..., Any], **options: Any) -> SimulatedProgram:
    return SimulatedProgram(build, options.pop("inputs", two_streams), **options)


PROGRAMS: dict[str, SimulatedProgram] = {
    "connected-by-key": of_two_streams(connected_by_key, last=LAST, cut_free=True, batch_oracle=oracles.balances),
    "connected-without-key": of_two_streams(
        connected_without_key, bounded=True, cut_free=True, batch_oracle=oracles.either
    ),
    "co-map-and-flat-map": of_two_streams(co_map_and_flat_map, cut_free=True, batch_oracle=oracles.second_mentions),
    "interval-join": of_two_streams(near(-50, 80), last=LAST, cut_free=True, batch_oracle=oracles.near(-50, 80)),
    "interval-join-of-one-key": of_two_streams(
        near(-20, 20, 2000), inputs=of_one_key, last=LAST, cut_free=True, batch_oracle=oracles.near(-20, 20)
    ),
    "interval-join-of-the-past": of_two_streams(
        near(-200, -20), bounded=True, cut_free=True, batch_oracle=oracles.near(-200, -20)
    ),
    "late-interval-join": of_two_streams(
        near_and_late,
        bounded=True,
        batch_oracle=lambda inputs: {"output": oracles.pairs(inputs["lefts"], inputs["rights"], -200, 300)},
    ),
    "join-of-joins": of_two_streams(joins_of_joins, bounded=True, cut_free=True, batch_oracle=oracles.joins_of_joins),
    "joined-windows": of_two_streams(windows_of_both, bounded=True, cut_free=True, batch_oracle=oracles.joined_windows),
    "rules-by-time": SimulatedProgram(
        rules_by_time,
        payments_and_rules,
        last={"payments": [("z", FAR, 0)], "rules": [("rule", FAR, 99)]},
        together={"rules": together},
        cut_free=True,
        rescales=False,
        batch_oracle=oracles.rules_by_time,
        batch_view=of_payments,
    ),
    "broadcast-without-key": SimulatedProgram(
        listed,
        lambda rng: {"events": keyed_events(rng, most=20), "rules": keyed_events(rng, keys=LETTERS[:4])},
        last={"events": ASKING, "rules": []},
        together={"rules": together},
        cut_free=True,
        rescales=False,
        view=told_once,
        batch_oracle=SUBTASKS,
    ),
    "spread": of_events(
        spread,
        most=30,
        last={"events": [("z", FAR, 0)]},
        together={"events": first},
        order={"running": first},
        cut_free=True,
        rescales=False,
        parallelism=(1, 2),
        batch_oracle=SUBTASKS,
    ),
    "extremes": of_events(
        extremes,
        together={"events": first},
        order={"min_by": first, "max": first, "sum": first},
        cut_free=True,
        batch_oracle=oracles.extremes,
    ),
}
