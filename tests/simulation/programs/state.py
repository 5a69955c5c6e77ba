"""Programs with state: its kinds, its order, and several levels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    FilterFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox.testing import row
from tests.faults.programs.tally import Tally
from tests.simulation import oracles
from tests.simulation.programs.program import LETTERS, SUBTASKS, Inputs, SimulatedProgram, of_events
from tests.support.programs import LATE, History, diamond, first, rows_with_columns, second


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
    # The second level may see the first one's keys in any order; the totals are fixed.
    if name != "sums":
        return values
    return [max(values, default=None)]


def two_sources(env, left, right):
    both = left.map(lambda x: x + 1).union(right.filter(lambda x: x % 2 == 0))
    totals = both.map(lambda x: (x % 5, x)).key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1]))
    return totals.key_by(lambda total: "all").reduce(lambda a, b: (*a, b) if type(a[0]) is tuple else (a, b))


def totals_view(name: str, values: Sequence[Any]) -> Sequence[Any]:
    # (The first one is a total by itself, as long as two totals are.)
    parts = max((value if type(value[0]) is tuple else (value,) for value in values), key=len, default=())
    totals: dict[int, int] = {}
    for key, total in parts:
        totals[key] = max(total, totals.get(key, 0))
    return [len(values), len(parts), *sorted(totals.items())]


def few_keys(rng: random.Random) -> list[Any]:
    return [(rng.choice("abcd"), rng.randrange(30)) for _ in range(rng.randrange(80))]


def many_keys(rng: random.Random) -> list[Any]:
    return [(rng.randrange(60), rng.randrange(30)) for _ in range(rng.randrange(200))]


class Mean(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        return [accumulator[0] + 1, accumulator[1] + value]

    def get_result(self, accumulator):
        return accumulator[1] / accumulator[0]


class EveryState(KeyedProcessFunction):
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


class Spoils(EveryState):
    """At every fourth record, changes its state, including a large map, and raises."""

    def open(self, runtime_context):
        super().open(runtime_context)
        self.large = runtime_context.get_map_state(MapStateDescriptor("large"))

    def process_element(self, value, ctx):
        _, number = value
        if self.large.is_empty():
            self.large.put_all(dict.fromkeys(range(100), 0))
        self.large.put(number, self.large.get(number) + 1)
        for result in super().process_element(value, ctx):
            yield *result, sum(self.large.values())
        if number % 4 == 2:
            for state in (self.value, self.list, self.map, self.sum, self.mean):
                state.clear()
            self.large.remove(number)
            self.large.put(-1, number)
            raise ValueError(number)


def dead_letters(env, events):
    keyed = events.key_by(first)
    good = keyed.process(Spoils(), on_error=LATE)
    letters = good.get_side_output(LATE).map(lambda letter: (letter.key, letter.value, letter.error))
    return {"output": good, "letters": letters}


class Nth(MapFunction):
    """Numbers the records of each key."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value[0], value[1], self.count.value()


class Changed(FilterFunction):
    """Passes a record if its number differs from its key's previous number."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def filter(self, value):
        last = self.last.value()
        self.last.update(value[1] % 3)
        return last != value[1] % 3


def keyed_map_and_filter(env, events):
    return events.key_by(first).filter(Changed()).key_by(first).map(Nth())


def running_sums(env, events):
    return events.key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1]))


class Tallied(KeyedProcessFunction):
    """Stores an object that runs its own code when unpickled."""

    def open(self, runtime_context):
        self.tally = runtime_context.get_state(ValueStateDescriptor("tally"))

    def process_element(self, value, ctx):
        tally = self.tally.value() or Tally("")
        tally.add(value[1])
        self.tally.update(tally)
        yield value[0], tally.n


def tallies(env, events):
    return events.key_by(first).process(Tallied())


def tallies_of(inputs: Inputs) -> dict[str, Sequence[Any]]:
    counts = Counter(map(first, inputs["events"]))
    return {"output": [(key, n) for key, count in counts.items() for n in range(1, count + 1)]}


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
    """Seeds the process's random number generator, so that its samples can be repeated."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        random.seed(7)
        self.seen.add((value[1], random.random()))
        yield value[0], tuple(number for number, _ in self.seen)


def seeded_samples(env, events):
    return events.key_by(first).process(Sampled())


class OfTheSubtask(MapFunction, CheckpointedFunction):
    """Emits (record's index in the subtask, subtask)."""

    def __init__(self):
        self.values = []

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context):
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))
        self.values.extend(self.seen.get())

    def map(self, value):
        self.values.append(value)
        self.seen.add(value)
        assert self.values == list(self.seen.get()), "a field that was made of another state"
        return len(self.values), self.subtask


def of_the_subtask(env, events):
    return events.rebalance().map(OfTheSubtask()).map(OfTheSubtask())


PROGRAMS: dict[str, SimulatedProgram] = {
    "history": SimulatedProgram(
        history,
        lambda rng: {"source": numbers(rng)},
        together={"source": modulo_5},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.history, oracles.modulo_5),
    ),
    "two-levels": SimulatedProgram(
        two_levels,
        lambda rng: {"source": numbers(rng)},
        together={"source": modulo_5},
        order={"history": first},
        cut_free=True,
        view=two_levels_view,
        batch_oracle=oracles.two_levels,
    ),
    "two-sources": SimulatedProgram(
        two_sources,
        lambda rng: {"left": numbers(rng), "right": numbers(rng)},
        cut_free=True,
        view=totals_view,
        batch_oracle=oracles.two_sources,
    ),
    "diamond": SimulatedProgram(
        diamond, lambda rng: {"source": numbers(rng)}, cut_free=True, batch_oracle=oracles.diamond
    ),
    "every-state": SimulatedProgram(
        every_state,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.every_state),
    ),
    "many-keys": SimulatedProgram(
        every_state,
        lambda rng: {"events": many_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.every_state),
    ),
    "dead-letters": SimulatedProgram(
        dead_letters,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first, "letters": first},
        cut_free=True,
        batch_oracle=oracles.dead_letters,
    ),
    "keyed-map-and-filter": SimulatedProgram(
        keyed_map_and_filter,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.numbered_changes),
    ),
    "running-sums": SimulatedProgram(
        running_sums,
        lambda rng: {"events": many_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(lambda key, group: [(key, sum(map(second, group)))]),
    ),
    "tallies": SimulatedProgram(
        tallies, lambda rng: {"events": many_keys(rng)}, order={"output": first}, cut_free=True, oracle=tallies_of
    ),
    "rows": SimulatedProgram(
        rows_with_columns,
        lambda rng: {
            "payments": [row(card=rng.choice(LETTERS), amount=rng.randrange(9)) for _ in range(rng.randrange(40))]
        },
        together={"payments": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(lambda card, group: [row(card=card, amount=sum(map(second, group)))]),
    ),
    "side-outputs": of_events(
        side_outputs, together={"events": lambda value: 0}, cut_free=True, batch_oracle=oracles.side_outputs
    ),
    "lists-of-subtasks": SimulatedProgram(of_the_subtask, lambda rng: {"events": few_keys(rng)}, batch_oracle=SUBTASKS),
    "seeded-samples": SimulatedProgram(
        seeded_samples,
        lambda rng: {"events": few_keys(rng)},
        together={"events": first},
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.seen_so_far),
    ),
}
