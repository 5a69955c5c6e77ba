"""The programs that are simulated, each with an input drawn from a seed and what its outcome has to agree in.

A program's outcome may depend on what Spark promises (which records an epoch has, and which of them are in a partition
together), and on nothing else. One that does not even depend on that is ``cut_free``; one that heeds the clock is
``timed``: its outcome may not depend on when exactly an epoch runs.
"""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from examples.flights import job as flights
from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncCache,
    AsyncRetryStrategy,
    FilterFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import row
from pillarbox.testing.program_harness import Build
from tests.faults import job as faults_job
from tests.simulation.service import NEVER, Client

ROOT = Path(__file__).parents[2]
LATE = OutputTag("late")
FAILED = OutputTag("failed")
FAR = 10**9
LETTERS = "abcdefgh"
# Some of their records reach every subtask, however many there are.
HEARTBEATS = [f"heartbeat {number}" for number in range(12)]

Inputs = dict[str, list[Any]]


@dataclass(frozen=True)
class SimulatedProgram:
    """A program and what is promised about it.

    Attributes:
        inputs: draws the records of each source.
        last: records that come last, in an epoch of their own.
        tail: by how many milliseconds the clock goes on before each of the epochs without input behind that.
        together: for a source, the key of a record; the records of a key in one epoch are in one partition, so their
            order is known.
        order: for an output, the key of a record; records of one key come in a known order.
        cut_free: the outcome does not depend on how the input is cut into epochs and partitions.
        timed: the program looks at the clock.
        bounded: the last epoch is the end of the input.
        view: makes of an output's records what has to agree.
    """

    build: Build
    inputs: Callable[[random.Random], Inputs]
    last: Inputs = field(default_factory=dict)
    tail: tuple[int, ...] = ()
    together: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    order: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    cut_free: bool = False
    timed: bool = False
    bounded: bool = False
    view: Callable[[str, Sequence[Any]], Sequence[Any]] = lambda name, values: values
    parallelism: tuple[int, ...] = (1, 2, 3)


def first(value: Any) -> Any:
    return value[0]


def second(value: Any) -> Any:
    return value[1]


def monotonous(position: int = 1) -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[position])


def bounded(bound: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(lambda value: value[1])


def keyed_events(rng: random.Random, *, most: int = 60, keys: str = LETTERS, until: int = 1500) -> list[Any]:
    """Return events (key, time, number) about in order; no two have the same number."""
    count = rng.randrange(most + 1)
    times = sorted(rng.randrange(until) for _ in range(count))
    return [(rng.choice(keys), max(0, at - rng.choice([0, 0, 20, 100])), n) for n, at in enumerate(times)]


# -- windows --


class Tumbling(KeyedProcessFunction):
    """Sums in windows of 50 ms of event time; what comes too late goes to the side."""

    def open(self, runtime_context):
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums"))

    def process_element(self, value, ctx):
        end = value[1] // 50 * 50 + 50
        if end - 1 <= ctx.timer_service().current_watermark():
            yield LATE, value
            return
        self.sums[end] = (self.sums.get(end) or 0) + value[2]
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp + 1, self.sums[timestamp + 1]
        self.sums.remove(timestamp + 1)


def windows(env, events):
    summed = events.assign_timestamps_and_watermarks(bounded(10_000)).key_by(first).process(Tumbling())
    return {"sums": summed, "late": summed.get_side_output(LATE)}


def late_data(env, events):
    summed = events.assign_timestamps_and_watermarks(monotonous()).key_by(first).process(Tumbling())
    return {"sums": summed, "late": summed.get_side_output(LATE)}


# -- order and several levels --


class History(KeyedProcessFunction):
    """Everything that a key has seen, in order."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.seen.add(value)
        self.count.update((self.count.value() or 0) + 1)
        if value % 7 == 0:
            self.seen.clear()
        yield ctx.get_current_key(), self.count.value(), tuple(self.seen)


def numbers(rng: random.Random) -> list[int]:
    return [rng.randrange(100) for _ in range(rng.randrange(60))]


def modulo_5(value: int) -> int:
    return value % 5


def history(env, source):
    return source.map(lambda x: x + 0).key_by(modulo_5).process(History())


def two_levels(env, source):
    seen = source.key_by(modulo_5).process(History())
    repeated = seen.flat_map(lambda result: [result[0]] * (result[1] % 3))
    return {"history": seen, "sums": repeated.key_by(lambda x: x % 2).reduce(lambda a, b: a + b)}


def two_levels_view(name: str, values: Sequence[Any]) -> Sequence[Any]:
    # The order in which the second level sees the first one's keys is free: the totals are not.
    if name != "sums":
        return values
    return [max(values, default=None)]


def two_sources(env, left, right):
    both = left.map(lambda x: x + 1).union(right.filter(lambda x: x % 2 == 0))
    totals = both.map(lambda x: (x % 5, x)).key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1]))
    return totals.key_by(lambda total: "all").reduce(lambda a, b: (*a, b) if type(a[0]) is tuple else (a, b))


def totals_view(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return each key's total: the order of its parts is free."""
    longest = max(values, key=len, default=())
    parts = longest if longest and type(longest[0]) is tuple else [longest] if longest else []
    totals: dict[int, int] = {}
    for key, total in parts:
        totals[key] = max(total, totals.get(key, 0))
    return [len(values), len(parts), *sorted(totals.items())]


def diamond(env, source):
    doubled, negated = source.map(lambda x: 2 * x), source.map(lambda x: -x)
    return doubled.union(negated, source, source).key_by(lambda x: x).reduce(lambda a, b: a + b)


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Echo(KeyedProcessFunction):
    """Emits each record when event time has come to it."""

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
    """Level 3 gets records of the source, of level 1 and of level 2."""
    stamped = events.assign_timestamps_and_watermarks(bounded(50))
    one = stamped.key_by(first).process(Echo())
    two = one.key_by(lambda value: value[2] % 3).process(Echo())
    return stamped.union(one, two).key_by(lambda value: value[2] % 5).process(Echo())


def strategies_that_meet(env, events):
    strict = events.assign_timestamps_and_watermarks(monotonous())
    lenient = events.assign_timestamps_and_watermarks(bounded(300))
    return strict.union(lenient).filter(lambda value: True).key_by(first).process(Tumbling())


def meeting_behind_a_shuffle(env, events):
    passed = events.key_by(first).process(Pass())
    strict = passed.assign_timestamps_and_watermarks(bounded(5000))
    lenient = passed.assign_timestamps_and_watermarks(bounded(9000))
    return strict.union(lenient).map(lambda value: value).key_by(first).process(Echo())


# -- idleness --


def idle_source(env, fast, slow):
    streams = [s.assign_timestamps_and_watermarks(bounded(10_000).with_idleness(100)) for s in (fast, slow)]
    return streams[0].union(streams[1]).key_by(first).process(Tumbling())


def idle_behind_a_shuffle(env, events):
    strategy = monotonous().with_idleness("200 ms")
    passed = events.key_by(first).process(Pass()).assign_timestamps_and_watermarks(strategy)
    echoed = passed.key_by(first).process(Echo())
    return echoed.filter(lambda value: value[0] in LETTERS)


# -- processing time --


class Later(KeyedProcessFunction):
    """Sets processing-time timers, which set others."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        if timestamp % 4 == 0:
            ctx.timer_service().register_processing_time_timer(timestamp + 101)
        yield ctx.get_current_key(), timestamp


def processing_time(env, events):
    # A timer in the past fires once for each time that it is set: so none may be set twice, and times are even.
    return events.key_by(first).process(Later())


class Reminder(KeyedProcessFunction):
    """Both kinds of timers on one key; either deletes the other."""

    def open(self, runtime_context):
        self.waits = runtime_context.get_state(ValueStateDescriptor("waits"))

    def process_element(self, value, ctx):
        if value[2] % 3 == 0:
            # Not before the end of the run: it is event time that comes first.
            ctx.timer_service().register_processing_time_timer(FAR + value[2])
            self.waits.update((*(self.waits.value() or ()), value[2]))
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        if timestamp >= FAR:
            yield "late", ctx.get_current_key(), timestamp - FAR
            return
        for number in self.waits.value() or ():
            if number % 2 == 0:
                ctx.timer_service().delete_processing_time_timer(FAR + number)
        self.waits.update(tuple(n for n in self.waits.value() or () if n % 2) or None)
        yield "timer", ctx.get_current_key(), timestamp


def both_kinds_of_timers(env, events):
    return events.assign_timestamps_and_watermarks(bounded(20_000)).key_by(first).process(Reminder())


# -- state --


class Mean(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        return [accumulator[0] + 1, accumulator[1] + value]

    def get_result(self, accumulator):
        return accumulator[1] / accumulator[0]


class EveryState(KeyedProcessFunction):
    """All kinds of state; keys come and go."""

    def open(self, runtime_context):
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))

    def process_element(self, value, ctx):
        key, number = value
        self.value.update(number)
        self.list.add(number)
        self.map.put(number % 3, (self.map.get(number % 3) or 0) + 1)
        self.sum.add(number)
        self.mean.add(number)
        yield key, number, tuple(self.list.get()), sorted(self.map.items()), self.sum.get(), self.mean.get()
        if number % 5 == 0:
            for state in (self.value, self.list, self.map, self.sum, self.mean):
                state.clear()
        elif number % 5 == 1:
            self.list.clear()
            self.map.remove(0)


def every_state(env, events):
    return events.key_by(first).process(EveryState())


class Nth(MapFunction):
    """Numbers the records of each key."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value[0], value[1], self.count.value()


class Changed(FilterFunction):
    """Lets a record through where its number is another than that of the key's record before."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def filter(self, value):
        last = self.last.value()
        self.last.update(value[1] % 3)
        return last != value[1] % 3


def keyed_map_and_filter(env, events):
    return events.key_by(first).filter(Changed()).key_by(first).map(Nth())


def few_keys(rng: random.Random) -> list[Any]:
    return [(rng.choice("abcd"), rng.randrange(30)) for _ in range(rng.randrange(80))]


def many_keys(rng: random.Random) -> list[Any]:
    return [(rng.randrange(60), rng.randrange(30)) for _ in range(rng.randrange(200))]


def running_sums(env, events):
    return events.key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1]))


def rows_with_columns(env, payments):
    return payments.key_by("card").reduce(lambda a, b: row(card=a.card, amount=a.amount + b.amount))


class Visit(KeyedProcessFunction):
    """A key lives until its timer: all of it goes in one epoch, and comes again later."""

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


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        if value[2] % 4 == 0:
            yield LATE, value
        else:
            yield value


def side_outputs(env, events):
    split = events.process(Split())
    return {
        "sums": split.key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2])),
        "side": split.get_side_output(LATE).key_by(second).reduce(lambda a, b: (a[0], a[1], a[2] + b[2])),
    }


class Sampled(KeyedProcessFunction):
    """Seeds the random numbers of its process, so that its samples can be repeated."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        random.seed(7)
        self.seen.add((value[1], random.random()))
        yield value[0], tuple(number for number, _ in self.seen)


def seeded_samples(env, events):
    return events.key_by(first).process(Sampled())


# -- the tests' and the examples' own --


def ledgers(env, events):
    return faults_job.program(events)


def fault_events(rng: random.Random) -> list[Any]:
    epochs = faults_job.make_events(rng.randrange(10**6), epochs=rng.randrange(1, 5), keys=12, records=30)
    return [event for parts in epochs[:-1] for part in parts for event in part]


def without_places(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [value[:4] for value in values]


def follow_aircraft(env, flights_of_a_week):
    return flights.build(flights_of_a_week)


def some_flights(rng: random.Random) -> list[Any]:
    rows = []
    minute = 0
    for _ in range(rng.randrange(60)):
        minute += rng.randrange(120)
        cancelled = rng.random() < 0.1
        rows.append(
            a_flight(
                "flight",
                minute + rng.choice([0, 0, 0, -200]),
                rng.choice(["N1", "N2", "N3", None]),
                None if cancelled else rng.choice([0, 5, 20, 60]),
                None if cancelled or rng.random() < 0.1 else rng.choice([0, 20, 90]),
                None if cancelled else rng.choice([30, 60, 120]),
            )
        )
    return rows


def a_flight(kind: str, minute: int, tail: str | None, dep: int | None, arr: int | None, air: int | None) -> Any:
    departed = datetime(2013, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minute)
    return row(
        kind=kind,
        departed=departed,
        tail=tail,
        carrier="PB",
        flight=minute % 97,
        origin="JFK",
        dest="BOS",
        dep_delay=dep,
        arr_delay=arr,
        air_time=air,
    )


def class_of_the_first_program() -> Any:
    """Return the function of ``examples/first_program.py``, whose last lines start Spark."""
    path = ROOT / "examples" / "first_program.py"
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if isinstance(part, (ast.ClassDef, ast.ImportFrom))]
    names: dict[str, Any] = {"__name__": "first_program"}
    exec(compile(tree, str(path), "exec"), names)
    (found,) = (value for value in names.values() if isinstance(value, type) and value.__module__ == "first_program")
    return found


def first_program(env, payments):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("at")
    return payments.assign_timestamps_and_watermarks(strategy).key_by("card").process(class_of_the_first_program()())


def some_payments(rng: random.Random) -> list[Any]:
    # No two at one time: which of them the state has last is nobody's promise.
    times = sorted(rng.sample(range(200), rng.randrange(40)))
    return [row(card=rng.choice(["ann", "bob", "cy"]), at=1000 * at, amount=float(rng.randrange(9))) for at in times]


# -- async I/O --


class Slow(Client):
    """Takes its time by the simulation's clock."""

    async def __call__(self, value: Any) -> Any:
        await self.ask(value[1])
        return value[0], value[2], value[2] ** 2


class Failing(Client):
    """Answers at once; fails for the first time or for ever."""

    async def __call__(self, value: Any) -> Any:
        await self.ask(0)
        if value[2] % 9 == 8:
            raise ConnectionError("never")
        if self.fails(value[2], value[2] % 3):
            raise ConnectionError("not yet")
        return value[0], value[2], value[2] ** 2


class Batched(Client):
    async def __call__(self, values: list[Any]) -> Any:
        await self.ask(0)
        return [(value[0], value[2], value[2] ** 2) for value in values]


def requests(rng: random.Random) -> list[Any]:
    """Return (key, how long the service takes, number)."""
    return [(rng.choice("abcd"), rng.choice([1, 5, 30, 200, 450]), n) for n in range(rng.randrange(25))]


def requests_without_answers(rng: random.Random) -> list[Any]:
    return [(key, rng.choice([takes, NEVER]), n) for key, takes, n in requests(rng)]


def carried(env, events):
    return events.key_by(first).map_async(Slow(), capacity=100, timeout=None, on_barrier="carry")


def carried_in_any_order(env, events):
    asked = events.key_by(first).map_async(Slow(), capacity=100, timeout=None, ordered=False, on_barrier="carry")
    return asked.key_by(second).reduce(max)


def carried_until_a_timeout(env, events):
    asked = events.key_by(first).map_async(
        Slow(), capacity=100, timeout="20 seconds", ordered=False, on_barrier="carry", on_failure=FAILED
    )
    return {"answers": asked, "failed": asked.get_side_output(FAILED)}


def failures_view(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [value.value for value in values] if name == "failed" else values


def carried_with_event_time(env, events):
    asked = (
        events.assign_timestamps_and_watermarks(monotonous(2))
        .key_by(first)
        .map_async(Slow(), capacity=100, timeout=None, on_barrier="carry")
    )
    return asked.key_by(first).process(Echo())


def retry() -> Any:
    return AsyncRetryStrategy.fixed_delay(4, 1)


def drained(env, events):
    asked = events.map_async(Failing(), retry=retry(), timeout=None, on_failure=FAILED)
    return {"sums": asked.key_by(first).reduce(max), "failed": asked.get_side_output(FAILED)}


def drained_behind_a_shuffle(env, events):
    asked = (
        events.key_by(first)
        .process(Pass())
        .map_async(Failing(), retry=retry(), timeout=None, ordered=True, on_failure="drop", capacity=3)
    )
    return asked.key_by(first).process(Pass())


def drained_with_a_cache(env, events):
    cache = AsyncCache(max_size=3, key=lambda value: value[2] % 4)
    return events.map_async(Constant(), cache=cache, timeout=None).key_by(lambda value: value).process(Counted())


class Constant(Client):
    async def __call__(self, value: Any) -> Any:
        await self.ask(0)
        return value[2] % 4


class Counted(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


def asked_in_batches(env, events):
    return events.key_by(first).map_async(Batched(), batch_size=4, timeout=None, ordered=True)


_ASKING = {"events": first}
_CARRIED = (50,) * 26

PROGRAMS: dict[str, SimulatedProgram] = {
    "windows": SimulatedProgram(
        windows, lambda rng: {"events": keyed_events(rng)}, last={"events": [("z", FAR, 0)]}, cut_free=True
    ),
    "windows-to-the-end": SimulatedProgram(
        windows, lambda rng: {"events": keyed_events(rng)}, cut_free=True, bounded=True
    ),
    "late-data": SimulatedProgram(late_data, lambda rng: {"events": keyed_events(rng)}),
    "history": SimulatedProgram(
        history,
        lambda rng: {"source": numbers(rng)},
        together={"source": modulo_5},
        order={"output": first},
        cut_free=True,
    ),
    "two-levels": SimulatedProgram(
        two_levels,
        lambda rng: {"source": numbers(rng)},
        together={"source": modulo_5},
        order={"history": first},
        cut_free=True,
        view=two_levels_view,
    ),
    "two-sources": SimulatedProgram(
        two_sources, lambda rng: {"left": numbers(rng), "right": numbers(rng)}, cut_free=True, view=totals_view
    ),
    "diamond": SimulatedProgram(diamond, lambda rng: {"source": numbers(rng)}, cut_free=True),
    "three-levels": SimulatedProgram(
        three_levels, lambda rng: {"events": keyed_events(rng)}, last={"events": [("z", FAR, 0)]}
    ),
    "union-of-levels": SimulatedProgram(
        union_of_levels, lambda rng: {"events": keyed_events(rng, most=40)}, last={"events": [("z", FAR, 0)]}
    ),
    "strategies-that-meet": SimulatedProgram(
        strategies_that_meet, lambda rng: {"events": keyed_events(rng)}, bounded=True
    ),
    "meeting-behind-a-shuffle": SimulatedProgram(
        meeting_behind_a_shuffle, lambda rng: {"events": keyed_events(rng)}, cut_free=True, bounded=True
    ),
    "idle-source": SimulatedProgram(
        idle_source,
        lambda rng: {"fast": keyed_events(rng), "slow": keyed_events(rng, most=8)},
        last={"fast": [("z", FAR, 0)], "slow": [("z", FAR, 0)]},
        cut_free=True,
        timed=True,
    ),
    "idle-behind-a-shuffle": SimulatedProgram(
        idle_behind_a_shuffle,
        lambda rng: {"events": keyed_events(rng, most=20)},
        last={"events": [(key, FAR, 0) for key in HEARTBEATS]},
        cut_free=True,
        timed=True,
    ),
    "processing-time": SimulatedProgram(
        processing_time,
        lambda rng: {"events": [(rng.choice(LETTERS), at) for at in rng.sample(range(2, 1600, 2), rng.randrange(40))]},
        tail=(600,) * 4,
        cut_free=True,
        timed=True,
    ),
    "both-kinds-of-timers": SimulatedProgram(
        both_kinds_of_timers,
        lambda rng: {"events": keyed_events(rng)},
        last={"events": [("z", FAR // 2, 1)]},
        tail=(2 * FAR, 1),
        cut_free=True,
        timed=True,
    ),
    "every-state": SimulatedProgram(
        every_state,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
    ),
    "many-keys": SimulatedProgram(
        every_state,
        lambda rng: {"events": many_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
    ),
    "keyed-map-and-filter": SimulatedProgram(
        keyed_map_and_filter,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
    ),
    "running-sums": SimulatedProgram(
        running_sums,
        lambda rng: {"events": many_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
    ),
    "rows": SimulatedProgram(
        rows_with_columns,
        lambda rng: {
            "payments": [row(card=rng.choice(LETTERS), amount=rng.randrange(9)) for _ in range(rng.randrange(40))]
        },
        together={"payments": first},
        order={"output": first},
        cut_free=True,
    ),
    "sessions": SimulatedProgram(sessions, lambda rng: {"events": keyed_events(rng)}, last={"events": [("z", FAR, 0)]}),
    "side-outputs": SimulatedProgram(
        side_outputs, lambda rng: {"events": keyed_events(rng)}, together={"events": lambda value: 0}, cut_free=True
    ),
    "seeded-samples": SimulatedProgram(
        seeded_samples,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
    ),
    "ledgers": SimulatedProgram(
        ledgers,
        lambda rng: {"events": fault_events(rng)},
        last={"events": [faults_job.Event(10**6, faults_job.HEARTBEAT, faults_job.FAR)]},
        together={"events": second},
        view=without_places,
    ),
    "flights": SimulatedProgram(
        follow_aircraft,
        lambda rng: {"flights_of_a_week": some_flights(rng)},
        last={"flights_of_a_week": [a_flight("heartbeat", 200 * 24 * 60, None, None, None, None)]},
    ),
    "first-program": SimulatedProgram(
        first_program,
        lambda rng: {"payments": some_payments(rng)},
        last={"payments": [row(card="z", at=FAR, amount=0.0)]},
    ),
    "carried": SimulatedProgram(
        carried,
        lambda rng: {"events": requests(rng)},
        together=_ASKING,
        order={"output": first},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
    ),
    "carried-in-any-order": SimulatedProgram(
        carried_in_any_order,
        lambda rng: {"events": requests(rng)},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
    ),
    "carried-until-a-timeout": SimulatedProgram(
        carried_until_a_timeout,
        lambda rng: {"events": requests_without_answers(rng)},
        tail=(50,) * 20 + (4000,) * 8,
        cut_free=True,
        timed=True,
        view=failures_view,
    ),
    "carried-with-event-time": SimulatedProgram(
        carried_with_event_time,
        lambda rng: {"events": requests(rng)},
        last={"events": [("z", 1, FAR)]},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
    ),
    "drained": SimulatedProgram(
        drained,
        lambda rng: {"events": keyed_events(rng, most=30)},
        together=_ASKING,
        order={"sums": first},
        cut_free=True,
        view=failures_view,
    ),
    "drained-behind-a-shuffle": SimulatedProgram(
        drained_behind_a_shuffle,
        lambda rng: {"events": keyed_events(rng, most=30)},
        together=_ASKING,
        order={"output": first},
        cut_free=True,
    ),
    "drained-with-a-cache": SimulatedProgram(
        drained_with_a_cache, lambda rng: {"events": keyed_events(rng, most=30)}, cut_free=True
    ),
    "asked-in-batches": SimulatedProgram(
        asked_in_batches,
        lambda rng: {"events": keyed_events(rng, most=30)},
        together=_ASKING,
        order={"output": first},
        cut_free=True,
    ),
}


def outcome(program: SimulatedProgram, outputs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return what has to agree: of each output the records of each key in their order, or how often there is each."""
    result: dict[str, Any] = {}
    for name, values in outputs.items():
        seen = program.view(name, values)
        if name in program.order:
            by_key: defaultdict[Any, list[str]] = defaultdict(list)
            for value in seen:
                by_key[program.order[name](value)].append(repr(value))
            result[name] = dict(by_key)
        else:
            result[name] = Counter(map(repr, seen))
    return result
