from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from pillarbox import (
    AggregateFunction,
    BroadcastProcessFunction,
    CountTrigger,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._elements.records import Records
from pillarbox._state.chunks.head import META

BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[1])
MINUTE = 60_000


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, accumulator, other):
        return accumulator[0] + other[0], accumulator[1] + other[1]


MEAN = tuple[int, int]
TYPED = {
    "deduplicate": lambda keyed: keyed.deduplicate(MINUTE),
    "tumbling": lambda keyed: keyed.window(TumblingEventTimeWindows.of(MINUTE)).aggregate(
        Mean(), accumulator_type=MEAN
    ),
    "sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(MINUTE)).aggregate(
        Mean(), accumulator_type=MEAN
    ),
    "sessions of a named type": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(MINUTE)).aggregate(
        Mean(), accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    ),
    "panes": lambda keyed: keyed.window(SlidingEventTimeWindows.of(MINUTE, MINUTE // 3)).aggregate(
        Mean(), accumulator_type=MEAN
    ),
    "counted": lambda keyed: keyed.count_window(2).aggregate(
        Mean(), None, Types.TUPLE([Types.LONG(), Types.LONG()]), Types.DOUBLE()
    ),
    "triggered": lambda keyed: (
        keyed.window(TumblingEventTimeWindows.of(MINUTE))
        .trigger(CountTrigger.of(2))
        .aggregate(Mean(), accumulator_type=MEAN)
    ),
}
PICKLED = {
    "the value state 'reducing-sessions': no type": lambda keyed: keyed.window(
        EventTimeSessionWindows.with_gap(MINUTE)
    ).reduce(max),
    "the aggregating state 'window-contents': object": lambda keyed: keyed.window(
        TumblingEventTimeWindows.of(MINUTE)
    ).aggregate(Mean(), accumulator_type=object),
}


STRING = Types.STRING()


def start(build, savepoint=None, key_type=STRING):
    env = StreamExecutionEnvironment.get_execution_environment()
    timed = env.from_collection([]).assign_timestamps_and_watermarks(BY_TIME)
    out = build(timed.key_by(lambda value: value[0], key_type=key_type)).uid("op")
    return env.local_job(out=out, savepoint=savepoint)


def push(job, *values):
    (source,) = job.program.sources
    return job.run_epoch({source: [[Records(list(values))]]})["out"]


def formats(job):
    return {report.state_format for report in job.reports if report.uid == "op"}


def types_in_head(savepoint):
    (store,) = savepoint.values()
    return pickle.loads(store.chunks[META][15:]).get("types")


@pytest.mark.parametrize("name", TYPED)
def test_operators_whose_types_are_known_are_plain(name):
    first = [("a", 1_000, 3), ("b", 1_001, 4)]
    then = [("a", 2_000, 5), ("b", 200_000, 6), ("a", 200_001, 7)]
    with start(TYPED[name]) as job:
        push(job, *first)
        savepoint = job.savepoint()
        expected = push(job, *then)
        assert formats(job) == {"plain"}
    assert types_in_head(savepoint)
    with start(TYPED[name], savepoint) as job:
        assert push(job, *then) == expected
    # Like pickles, which can read plain data; and are converted if their types match.
    with start(TYPED[name], savepoint, None) as job:
        assert push(job, *then) == expected
        assert formats(job) == {
            "pickle: the type of its key is not known: key by columns of a DataFrame or an output_type, or declare"
            " key_type"
        }
        savepoint = job.savepoint()
    assert not types_in_head(savepoint)
    with start(TYPED[name], savepoint) as job:
        push(job, ("a", 200_002, 1))
        assert formats(job) == {"plain"}


@pytest.mark.parametrize("reason", PICKLED)
def test_other_operators_say_why_they_are_pickled(reason):
    with start(PICKLED[reason]) as job:
        push(job, ("a", 1_000, 3))
        (state_format,) = formats(job)
    assert state_format is not None
    assert state_format.startswith(f"pickle: {reason}")


def test_an_accumulator_of_another_type_is_refused():
    with (
        start(TYPED["tumbling"]) as job,
        pytest.raises(
            TypeMismatchError,
            match=r"operator 'window\.aggregate: Mean': the aggregating state 'window-contents' of key 'a'",
        ),
    ):
        push(job, ("a", 1_000, 0.5))


def test_operators_without_state_have_no_format():
    env = StreamExecutionEnvironment.get_execution_environment()
    out = env.from_collection([]).rebalance().map(str).uid("op")
    with env.local_job(out=out) as job:
        push(job, 1)
        assert {report.state_format for report in job.reports} == {None}


def test_columns_are_no_accumulator_type():
    keyed = StreamExecutionEnvironment.get_execution_environment().from_collection([1]).key_by(lambda n: n)
    with pytest.raises(
        ProgramError, match=r"accumulator_type= must be a type such as .* not 'mean DOUBLE'.* output_type"
    ):
        keyed.count_window(2).aggregate(Mean(), None, "mean DOUBLE")  # type: ignore[call-overload]


def test_broadcast_state_without_keys_says_that_there_are_none():
    class Known(BroadcastProcessFunction):
        def process_element(self, value, ctx):
            yield value

        def process_broadcast_element(self, value, ctx):
            ctx.get_broadcast_state(RULES).put(value, value)

    RULES = MapStateDescriptor("rules", Types.LONG(), Types.LONG())
    env = StreamExecutionEnvironment.get_execution_environment()
    rules = env.from_collection([1, 2]).broadcast(RULES)
    out = env.from_collection([]).connect(rules).process(Known()).uid("op")
    with env.local_job(out=out) as job:
        job.run_epoch({source: [] for source in job.program.sources})
        (state_format,) = formats(job)
    assert state_format is not None and state_format.startswith("pickle: it works without keys")


class Classified(NamedTuple):
    conversation: str
    label: int | None


class Labels(KeyedProcessFunction[str, Classified, int]):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value, ctx):
        self.last.update(value[1])
        yield value[1]


CLASSIFIED = Types.ROW_NAMED(["conversation", "label"], [Types.STRING(), Types.LONG()])


async def classify(value: int) -> Classified:
    return Classified("a" if value % 2 else "b", value)


DECLARED: dict[str, Any] = {
    "map": lambda numbers: numbers.map(lambda value: Classified("a", value), Classified),
    "flat_map": lambda numbers: numbers.flat_map(lambda value: [("a", value)], CLASSIFIED),
    "map_async": lambda numbers: numbers.map_async(classify, Classified),
    "map_async and a filter": lambda numbers: numbers.map_async(classify, CLASSIFIED).filter(bool),
    "a union": lambda numbers: numbers.map_async(classify, CLASSIFIED).union(
        numbers.map(lambda value: ("a", value), CLASSIFIED)
    ),
    "a union with itself": lambda numbers: (labels := numbers.map_async(classify, Classified)).union(labels),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_key_is_known_behind_a_function_that_declares_its_columns(name):
    env = StreamExecutionEnvironment.get_execution_environment()
    out = DECLARED[name](env.from_collection([])).key_by("conversation").process(Labels()).uid("op")
    with env.local_job(out=out) as job:
        assert set(push(job, 1, 3)) == {1, 3}
        assert formats(job) == {"plain"}


@pytest.mark.parametrize("declared", [None, Types.PICKLED_BYTE_ARRAY(), Types.TUPLE([Types.STRING(), Types.LONG()])])
def test_a_key_is_not_known_behind_a_function_that_does_not_declare_its_column(declared):
    env = StreamExecutionEnvironment.get_execution_environment()
    labels = env.from_collection([]).map(lambda value: Classified("a", value), declared)
    keyed = labels.key_by("conversation") if declared is None else labels.key_by(lambda value: value[0])
    with env.local_job(out=keyed.process(Labels()).uid("op")) as job:
        assert push(job, 1) == [1]
        (state_format,) = formats(job)
    assert state_format is not None and state_format.startswith("pickle: the type of its key is not known")


def test_a_key_that_is_not_what_its_declared_column_says_is_refused_by_name():
    env = StreamExecutionEnvironment.get_execution_environment()
    labels = env.from_collection([]).map(lambda value: Classified(np.int64(value), value), Classified)
    out = labels.key_by("conversation").process(Labels()).uid("op")
    with (
        env.local_job(out=out) as job,
        pytest.raises(
            TypeMismatchError,
            match=r"operator 'process: Labels': the key (np\.int64\(1\)|1) \(int64\) is no plain value, .* such as int",
        ),
    ):
        push(job, 1)
