from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CheckpointedFunction,
    CheckpointMismatchError,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    ProgramError,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._state.savepoint.own_state import redistribute_operator_state
from pillarbox.testing import ProgramTestHarness, StreamRecord, check_operator, harness_for

NUMBERS = ListStateDescriptor[Any]("numbers")


class Numbered(MapFunction, CheckpointedFunction):
    union = False

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        get = store.get_union_list_state if self.union else store.get_list_state
        self.numbers = get(NUMBERS)

    def map(self, number):
        self.numbers.add(number)
        return self.subtask, len(self.numbers.get())


class United(Numbered):
    union = True


class Counted(FlatMapFunction, CheckpointedFunction):
    """Counts records in an attribute, and writes the count into operator state at each snapshot."""

    def initialize_state(self, context):
        self.saved = context.get_operator_state_store().get_list_state(ListStateDescriptor("count", int))
        self.count = sum(self.saved)
        assert context.is_restored() or not self.count

    def flat_map(self, number):
        self.count += 1
        yield number, self.count

    def snapshot_state(self, context):
        assert context.get_checkpoint_id() > 0
        self.saved.update([self.count])


class Keyed(KeyedProcessFunction, CheckpointedFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context):
        self.all = context.get_operator_state_store().get_list_state(NUMBERS)

    def process_element(self, number, ctx):
        self.count.update(self.count.value() + 1)
        self.all.add(number)
        yield number % 5, self.count.value(), self.subtask, len(self.all.get())


@pytest.mark.parametrize("make", [Numbered, United, Counted])
def test_the_laws_of_operators(make):
    check_operator(
        lambda **options: harness_for(make(), **options), [StreamRecord(number, 0) for number in range(1, 9)]
    )


def test_the_laws_of_operators_with_keys():
    key_by = lambda number: number % 5  # noqa: E731
    check_operator(
        lambda **options: harness_for(Keyed(), key_by=key_by, **options),
        [StreamRecord(number, 0) for number in range(1, 20)],
    )


def whole(env, numbers):
    numbered = numbers.rebalance().map(Numbered()).uid("numbered")
    return {
        "numbered": numbered,
        "chained": numbered.map(United()).uid("chained"),
        "keyed": numbers.key_by(lambda number: number % 5).process(Keyed()).uid("keyed"),
        "behind": numbers.key_by(lambda number: number).map(lambda number: number).map(Numbered()).uid("behind"),
    }


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "fail", "restart"])), max_size=8),
    st.integers(1, 3),
)
def test_each_subtask_keeps_its_own(epochs, parallelism):
    harness = ProgramTestHarness(whole, parallelism=parallelism)
    seen: dict[str, list[Any]] = defaultdict(list)
    try:
        number = 0
        for count, event in epochs:
            for _ in range(count):
                harness.push("numbers", number, partition=number % 2)
                number += 1
            if event == "fail":
                harness.fail_epoch()
            for name, values in harness.run_epoch().items():
                seen[name] += values
            if event == "restart":
                snapshot = harness.snapshot()
                harness.close()
                harness = ProgramTestHarness(whole, parallelism=parallelism, snapshot=snapshot)
    finally:
        harness.close()
    for name, values in seen.items():
        assert len(values) == number
        counts = defaultdict(list)
        for value in values:
            counts[value[-2]].append(value[-1])
        for result in counts.values():
            assert sorted(result) == list(range(1, len(result) + 1)), name


def test_a_large_list_is_written_by_what_is_new():
    def build(env, numbers):
        return numbers.rebalance().map(Numbered()).uid("numbered")

    with ProgramTestHarness(build) as harness:
        harness.push_all("numbers", range(20_000))
        harness.run_epoch()
        (whole_list,) = [report.state_bytes_written for report in harness._job.reports if report.level == 1]
        harness.push("numbers", 7)
        assert harness.run_epoch()["output"] == [(0, 20_001)]
        (small,) = [report.state_bytes_written for report in harness._job.reports if report.level == 1]
        assert (whole_list or 0) > 40_000 and (small or 0) < 3_000


def test_it_lies_in_a_row_of_no_key():
    with harness_for(Keyed(), key_by=lambda number: number % 5) as harness:
        harness.push_all([1, 2, 6])
        assert harness.get_keys() == [1, 2]
        backend = harness._backend
        assert [slot.name for slot in backend.namespaces.slots] == ["list/Keyed/numbers"]
        assert backend.contents(None, "operator") == {"Keyed/numbers": [1, 2, 6]}


# -- refused --


def snapshot_of(function: Any) -> Any:
    def build(env, numbers):
        return numbers.rebalance().map(function).uid("numbered")

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 1)
        harness.run_epoch()
        return harness.snapshot()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda env, numbers: numbers.rebalance().map(United()).uid("numbered"),
            "holds the list state 'numbered/numbers' (uid and name) with 1 elements, which no function asks for",
        ),
        (
            lambda env, numbers: numbers.rebalance().map(str).uid("numbered").map(Numbered()).uid("other"),
            "set uid() of the operator to the one in the checkpoint",
        ),
    ],
)
def test_state_that_nobody_asks_for_is_not_forgotten(build, says):
    with ProgramTestHarness(build, snapshot=snapshot_of(Numbered())) as harness:
        harness.push("numbers", 2)
        with pytest.raises(CheckpointMismatchError) as caught:
            harness.run_epoch()
    assert says in str(caught.value)


class Wrong(MapFunction, CheckpointedFunction):
    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor

    def initialize_state(self, context):
        context.get_operator_state_store().get_list_state(self.descriptor)

    def map(self, value):
        return value


def timed_list() -> ListStateDescriptor:
    descriptor = ListStateDescriptor[Any]("timed")
    descriptor.enable_time_to_live(StateTtlConfig(5))
    return descriptor


@pytest.mark.parametrize(
    ("descriptor", "says"),
    [
        (MapStateDescriptor("m"), "needs a ListStateDescriptor, not MapStateDescriptor('m')"),
        (timed_list(), "the list state 'timed' has a time-to-live, which is for states of keys"),
    ],
)
def test_other_states_are_refused(descriptor, says):
    with pytest.raises(ProgramError) as caught, harness_for(Wrong(descriptor)):
        pass
    assert says in str(caught.value)


class Windowed(ProcessWindowFunction, CheckpointedFunction):
    def initialize_state(self, context):
        context.get_operator_state_store().get_list_state(NUMBERS)

    def process(self, key, context, elements):
        yield key


def test_it_does_not_lie_beside_windows():
    env = StreamExecutionEnvironment()
    timed = env.from_collection([1]).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number: number)
    )
    windows = timed.key_by(lambda number: 0).window(TumblingEventTimeWindows.of(5))
    with pytest.raises(ProgramError, match=r"the state 'numbers' of the operator .* cannot lie beside the windows"):
        windows.process(Windowed()).execute_and_collect()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda numbers: numbers.map(Numbered()), "has no identity|impossible before the first shuffle.*rebalance"),
        (lambda numbers: numbers.rebalance().map(Numbered(), on_error=OutputTag("bad")), "on_error=.*not rolled back"),
        (lambda numbers: numbers.rebalance().map_async(Asks()), "calls its function in another thread"),
    ],
)
def test_impossible_operator_state_is_refused_when_the_program_is_built(build, says):
    stream = build(StreamExecutionEnvironment().from_collection([1]))
    with pytest.raises(ProgramError, match=says):
        stream.execute_and_collect()


class Asks(CheckpointedFunction):
    def initialize_state(self, context): ...

    async def __call__(self, number):
        return number


# -- another number of subtasks --


@given(st.lists(st.lists(st.integers(), max_size=9), min_size=1, max_size=5), st.integers(1, 6))
def test_states_are_dealt_out_anew(parts, parallelism):
    rules = {"all": 1}
    states: list[dict[str, Any]] = [
        {"list/a/x": part or None, "union/a/y": part, "state/rules": dict(rules)} for part in parts
    ]
    new = redistribute_operator_state(states, parallelism)
    every = list(chain.from_iterable(parts))
    assert len(new) == parallelism
    shares = [state.get("list/a/x", []) for state in new]
    assert list(chain.from_iterable(shares)) == every
    if len(parts) == parallelism:
        assert shares == parts
    else:
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for state in new:
        assert state.get("union/a/y", []) == every and state["state/rules"] == rules
    copies = [state["state/rules"] for state in new]
    copies[0]["all"] = 2
    assert all(copy == rules for copy in copies[1:]) and all(state["state/rules"] == rules for state in states)
