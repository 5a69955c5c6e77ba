"""Programs with event time: windows, several levels, unions, and idle sources."""

from __future__ import annotations

import random

from pillarbox import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    TumblingEventTimeWindows,
)
from pillarbox.testing import row
from tests.simulation import oracles
from tests.simulation.programs.program import FAR, LAST, LETTERS, Inputs, SimulatedProgram, keyed_events, of_events
from tests.simulation.programs.windows import Contents
from tests.support.programs import Tumbling, bounded, first, late_data, monotonous, paid, windows

# Some of their records reach every subtask, however many there are.
HEARTBEATS = [f"heartbeat {number}" for number in range(12)]


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Echo(KeyedProcessFunction):
    """Emits each record when event time reaches it."""

    def open(self, runtime_context):
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))

    def process_element(self, value, ctx):
        self.waiting.put(value[1], [*(self.waiting.get(value[1]) or ()), value])
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        yield from self.waiting.get(timestamp)
        self.waiting.remove(timestamp)


def three_levels(env, events):
    stream = events.assign_timestamps_and_watermarks(bounded(100))
    for _ in range(3):
        stream = stream.key_by(lambda value: value[2] % 4).process(Echo())
    return stream


def union_of_levels(env, events):
    stamped = events.assign_timestamps_and_watermarks(bounded(50))
    one_level = stamped.key_by(first).process(Echo())
    two_levels = one_level.key_by(lambda value: value[2] % 3).process(Echo())
    return stamped.union(one_level, two_levels).key_by(lambda value: value[2] % 5).process(Echo())


def strategies_that_meet(env, events):
    strict = events.assign_timestamps_and_watermarks(monotonous())
    lenient = events.assign_timestamps_and_watermarks(bounded(300))
    return strict.union(lenient).filter(lambda value: True).key_by(first).process(Tumbling())


def meeting_behind_a_shuffle(env, events):
    passed = events.key_by(first).process(Pass())
    strict = passed.assign_timestamps_and_watermarks(bounded(5000))
    lenient = passed.assign_timestamps_and_watermarks(bounded(9000))
    return strict.union(lenient).map(lambda value: value).key_by(first).process(Echo())


def idle_source(env, fast, slow):
    streams = [s.assign_timestamps_and_watermarks(bounded(10_000).with_idleness(100)) for s in (fast, slow)]
    return streams[0].union(streams[1]).key_by(first).process(Tumbling())


def idle_behind_a_shuffle(env, events):
    strategy = monotonous().with_idleness("200 ms")
    passed = events.key_by(first).process(Pass()).assign_timestamps_and_watermarks(strategy)
    echoed = passed.key_by(first).process(Echo())
    return echoed.filter(lambda value: value[0] in LETTERS)


def windows_of_idle_subtasks(env, events):
    passed = events.key_by(first).process(Pass())
    timed = passed.assign_timestamps_and_watermarks(bounded(10_000).with_idleness("200 ms"))
    windows = timed.key_by(first).window(TumblingEventTimeWindows.of(150)).process(Contents())
    return windows.key_by(lambda value: value[1][0]).process(Pass()).filter(lambda value: value[0] in LETTERS)


def sessions_of_a_silent_source(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100_000).with_wall_clock_progress(300))
    sessions = timed.key_by(first).window(EventTimeSessionWindows.with_gap(60)).process(Contents())
    return sessions.key_by(lambda value: value[1][0]).window(EventTimeSessionWindows.with_gap(100)).process(Contents())


def idle_and_live_behind_a_shuffle(env, fast, slow):
    strategy = bounded(10_000).with_idleness("200 ms")
    streams = [s.key_by(first).process(Pass()).assign_timestamps_and_watermarks(strategy) for s in (fast, slow)]
    return streams[0].union(streams[1]).key_by(first).process(Tumbling())


def parts_that_meet(env, events):
    passed = events.key_by(first).process(Pass())
    parts = [passed.filter(lambda value, n=n: value[2] % 3 == n) for n in range(3)]
    strategies = [bounded(500), monotonous(), bounded(900)]
    strategies = [strategy.with_idleness(150 + 50 * n) for n, strategy in enumerate(strategies)]
    first_part, second_part, third_part = (p.assign_timestamps_and_watermarks(s) for p, s in zip(parts, strategies))
    return first_part.union(second_part, third_part).map(lambda value: value).key_by(first).process(Echo())


def silent_source(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100_000).with_wall_clock_progress(300))
    summed = timed.key_by(first).process(Tumbling())
    return summed.key_by(lambda value: value[1]).process(Echo())


def silent_sources(env, fast, slow):
    strategy = bounded(100_000).with_idleness(200).with_wall_clock_progress(100)
    streams = [s.assign_timestamps_and_watermarks(strategy) for s in (fast, slow)]
    return streams[0].union(streams[1]).key_by(first).process(Tumbling())


def orders_and_payments(rng: random.Random) -> Inputs:
    orders = [row(id=number, at=rng.randrange(20_000)) for number in rng.sample(range(30), rng.randrange(25))]
    payments = [row(order_id=rng.randrange(30), amount=n, at=rng.randrange(20_000)) for n in range(rng.randrange(30))]
    return {"orders": orders, "payments": payments}


class Visit(KeyedProcessFunction):
    """Removes a key's whole state at its timer. The key returns later."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.add(value)
        ends = max(value[1] for value in self.seen) + 200
        for earlier in self.seen:
            ctx.timer_service().delete_event_time_timer(earlier[1] + 200)
        ctx.timer_service().register_event_time_timer(ends)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, sorted(self.seen)
        self.seen.clear()


def sessions(env, events):
    return events.assign_timestamps_and_watermarks(monotonous()).key_by(first).process(Visit())


PROGRAMS: dict[str, SimulatedProgram] = {
    "windows": of_events(
        windows,
        last=LAST,
        cut_free=True,
        batch_oracle=lambda inputs: {"sums": oracles.tumbling_sums(inputs["events"]), "late": []},
    ),
    "windows-to-the-end": of_events(
        windows,
        cut_free=True,
        bounded=True,
        batch_oracle=lambda inputs: {"sums": oracles.tumbling_sums(inputs["events"]), "late": []},
    ),
    "late-data": of_events(
        late_data, batch_oracle=lambda inputs: {"sums": oracles.tumbling_sums(inputs["events"]), "late": []}
    ),
    "three-levels": of_events(three_levels, last=LAST, batch_oracle=oracles.all_again(1)),
    "union-of-levels": of_events(
        union_of_levels, most=40, last=LAST, event_time=True, batch_oracle=oracles.all_again(3)
    ),
    "strategies-that-meet": of_events(
        strategies_that_meet, bounded=True, event_time=True, batch_oracle=oracles.sums_of("events", times=2)
    ),
    "meeting-behind-a-shuffle": of_events(
        meeting_behind_a_shuffle, cut_free=True, bounded=True, event_time=True, batch_oracle=oracles.all_again(2)
    ),
    "orders-and-payments": SimulatedProgram(
        paid, orders_and_payments, cut_free=True, bounded=True, batch_oracle=oracles.orders_and_payments
    ),
    "idle-source": SimulatedProgram(
        idle_source,
        lambda rng: {"fast": keyed_events(rng), "slow": keyed_events(rng, most=8)},
        last={"fast": [("z", FAR, 0)], "slow": [("z", FAR, 0)]},
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.sums_of("fast", "slow"),
    ),
    "idle-behind-a-shuffle": of_events(
        idle_behind_a_shuffle,
        most=20,
        last={"events": [(key, FAR, 0) for key in HEARTBEATS]},
        tail=(100, 150, 1000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=lambda inputs: {"output": [value for value in inputs["events"] if value[0] in LETTERS]},
    ),
    "windows-of-idle-subtasks": of_events(
        windows_of_idle_subtasks,
        most=30,
        last={"events": [(key, FAR, 0) for key in HEARTBEATS]},
        tail=(100, 150, 1000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.windows_of_letters,
    ),
    "sessions-of-a-silent-source": of_events(
        sessions_of_a_silent_source,
        tail=(200_000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.sessions_of_sessions,
    ),
    "idle-and-live-behind-a-shuffle": SimulatedProgram(
        idle_and_live_behind_a_shuffle,
        lambda rng: {"fast": keyed_events(rng), "slow": keyed_events(rng, most=8)},
        last={name: [(key, FAR, 0) for key in HEARTBEATS] for name in ("fast", "slow")},
        tail=(100, 150, 1000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.sums_of("fast", "slow"),
    ),
    "parts-that-meet": of_events(
        parts_that_meet, cut_free=True, timed=True, bounded=True, event_time=True, batch_oracle=oracles.all_again(1)
    ),
    "silent-source": of_events(
        silent_source,
        tail=(200_000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.sums_of("events"),
    ),
    "silent-sources": SimulatedProgram(
        silent_sources,
        lambda rng: {"fast": keyed_events(rng), "slow": keyed_events(rng, most=8)},
        tail=(200_000, 1),
        cut_free=True,
        timed=True,
        event_time=True,
        batch_oracle=oracles.sums_of("fast", "slow"),
    ),
    "sessions": of_events(sessions, last=LAST, batch_oracle=oracles.each_key(oracles.visits)),
}
