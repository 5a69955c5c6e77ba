from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pillarbox import (
    ContinuousEventTimeTrigger,
    DataStream,
    GlobalWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProgramError,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WatermarkStrategy,
    count_,
)
from pillarbox.testing import ProgramTestHarness, row

AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
ROW = Types.ROW_NAMED(["key", "at"], [Types.STRING(), Types.LONG()])
RULES = MapStateDescriptor("rules")


class Endless:
    isStreaming = True
    columns = ("key", "at")
    schema = StructType([StructField("key", StringType()), StructField("at", LongType())])
    sparkSession = None

    def mapInArrow(self) -> None: ...


class Timed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.at)
        return []

    def on_timer(self, timestamp, ctx):
        yield row(key=ctx.get_current_key(), at=timestamp)


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.at)
        return []

    def process_broadcast_element(self, value, ctx):
        return []

    def on_timer(self, timestamp, ctx):
        yield timestamp


class Untimed(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value

    def process_broadcast_element(self, value, ctx):
        return []


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.at)
        return []

    def process_element2(self, value, ctx):
        return []


def rows(env: StreamExecutionEnvironment, name: str = "rows") -> DataStream[Any]:
    return env.from_collection([row(key="a", at=1)]).name(name)


def minutes(stream: DataStream[Any]) -> DataStream[Any]:
    return stream.key_by("key").window(TumblingEventTimeWindows.of("1 minute")).reduce(max)


# -- records without timestamps --


def joined(lefts: DataStream[Any], rights: DataStream[Any]) -> DataStream[Any]:
    pairs = lefts.key_by("key").interval_join(rights.key_by("key")).between(0, 1)
    return pairs.process(lambda left, right, ctx: [left])


@pytest.mark.parametrize(
    "build",
    [
        minutes,
        lambda s: minutes(s.map(lambda r: r).filter(bool).rebalance().key_by("key").reduce(max)),
        lambda s: minutes(s.union(s.assign_timestamps_and_watermarks(AT))),
        lambda s: s.window_all(TumblingEventTimeWindows.of(5)).reduce(max),
        lambda s: s.map(lambda r: r, ROW).key_by("key").window(TumblingEventTimeWindows.of(5)).aggregate(n=count_()),
        lambda s: s.key_by("key").deduplicate("1 hour"),
        lambda s: joined(s, s.assign_timestamps_and_watermarks(AT)),
        lambda s: joined(s.assign_timestamps_and_watermarks(AT), s),
        lambda s: s.join(s).where("key").equal_to("key").window(TumblingEventTimeWindows.of(5)).apply(max),
    ],
)
def test_event_time_without_timestamps_is_refused_in_advance(build):
    stream = build(rows(StreamExecutionEnvironment()))
    refused = r"uses event time, but the records of 'rows' have no timestamps: put assign_timestamps_and_watermarks"
    with pytest.raises(ProgramError, match=refused):
        stream.get_execution_environment().get_execution_graph()


def test_a_strategy_without_timestamps_is_refused():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream = rows(StreamExecutionEnvironment()).assign_timestamps_and_watermarks(strategy).name("times")
    with pytest.raises(ProgramError, match=r"'times': the records of 'rows' have no timestamps.* with_timestamp_assig"):
        stream.execute_and_collect()


@pytest.mark.parametrize(
    "build",
    [
        lambda s: minutes(s.assign_timestamps_and_watermarks(AT)),
        # Results of timers and of windows have timestamps of their own.
        lambda s: minutes(s.key_by("key").process(Timed())),
        lambda s: minutes(s.key_by("key").window(TumblingProcessingTimeWindows.of(5)).reduce(max)),
        lambda s: s.key_by("key").window(TumblingProcessingTimeWindows.of(5)).reduce(max),
        lambda s: s.key_by("key").count_window(1).reduce(max),
        # The record's source is unknown.
        lambda s: minutes(
            s.assign_timestamps_and_watermarks(AT).key_by("key").connect(s.broadcast(RULES)).process(Untimed())
        ),
    ],
)
def test_sources_that_may_have_timestamps_are_accepted(build):
    stream = build(rows(StreamExecutionEnvironment()))
    assert stream.get_execution_environment().get_execution_graph().levels


# -- event time that stands still --


def warnings(caplog: pytest.LogCaptureFixture, stream: DataStream[Any]) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="pillarbox"):
        for _ in range(2):
            stream.get_execution_environment().get_execution_graph()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "build",
    [
        lambda s, rules: s.key_by("key").connect(rules.broadcast(RULES)).process(Ruled()),
        lambda s, rules: s.key_by("key").connect(rules.key_by("key")).process(Both()),
        lambda s, rules: rules.key_by("key").connect(s.key_by("key")).process(Both()),
        lambda s, rules: s.union(rules).key_by("key").process(Timed()),
        lambda s, rules: minutes(s.key_by("key").connect(rules.broadcast(RULES)).process(Untimed())),
        lambda s, rules: (
            s.union(rules)
            .key_by("key")
            .window(GlobalWindows.create())
            .trigger(ContinuousEventTimeTrigger.of("1 minute"))
            .reduce(max)
        ),
    ],
)
def test_a_stream_without_watermarks_beside_one_with_them_is_told_once(build, caplog):
    env = StreamExecutionEnvironment()
    stream = build(rows(env).assign_timestamps_and_watermarks(AT), rows(env, "rules")).name("both")
    (warning,) = warnings(caplog, stream)
    assert warning.startswith("operator 'both': its event time is the minimum of its input streams, but 'rules' has no")
    assert "WatermarkStrategy.no_watermarks().with_idleness('10 seconds')" in warning


@pytest.mark.parametrize(
    "build",
    [
        lambda s, rules: s.key_by("key").connect(rules.broadcast(RULES)).process(Untimed()),
        lambda s, rules: s.union(rules).assign_timestamps_and_watermarks(AT).key_by("key").process(Timed()),
        lambda s, rules: rules.key_by("key").process(Timed()),  # of a collection, which ends
        lambda s, rules: (
            s.key_by("key")
            .connect(
                rules.assign_timestamps_and_watermarks(
                    WatermarkStrategy.no_watermarks().with_idleness("1 second")
                ).broadcast(RULES)
            )
            .process(Ruled())
        ),
    ],
)
def test_no_warning_where_event_time_goes_on_or_is_not_used(build, caplog):
    env = StreamExecutionEnvironment()
    assert not warnings(caplog, build(rows(env).assign_timestamps_and_watermarks(AT), rows(env, "rules")))


def test_timers_on_an_endless_stream_without_watermarks_are_told(caplog):
    env = StreamExecutionEnvironment().set_parallelism(2)
    stream = env.from_dataframe(Endless(), "events").key_by("key").process(Timed())  # type: ignore[arg-type]
    (warning,) = warnings(caplog, stream)
    assert "'events' has no watermarks" in warning


def test_no_warning_in_batch_mode(caplog):
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    timed = rows(env).assign_timestamps_and_watermarks(AT)
    assert not warnings(caplog, timed.union(rows(env, "rules")).key_by("key").process(Timed()))


def test_the_strategy_that_the_warning_names_lets_event_time_advance():
    def build(env: Any, events: Any, rules: Any) -> Any:
        silent = rules.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks().with_idleness("10 seconds"))
        events = events.assign_timestamps_and_watermarks(AT)
        return events.key_by("key").connect(silent.broadcast(RULES)).process(Ruled())

    with ProgramTestHarness(build) as harness:
        harness.push("rules", row(key="a", at=0))
        harness.push("events", row(key="a", at=1))
        assert harness.run_epoch()["output"] == []
        harness.push("events", row(key="a", at=100))
        harness.advance_processing_time(10_001)
        assert harness.run_epoch()["output"] == [1]
