"""A naive datetime is the same instant in every use: as event time, watermark, timer or column."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from pillarbox import (
    KeyedProcessFunction,
    OperatorError,
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkGenerator,
    WatermarkStrategy,
)
from pillarbox._elements.records import ArrowRecords
from pillarbox._rows import timestamps_ms
from pillarbox._types.row_encoder import RowEncoder
from pillarbox.testing import ProgramTestHarness, harness_for

NEW_YORK = "America/New_York"
NOON = datetime(2024, 7, 1, 12)


def millis(moment: datetime, zone: str = NEW_YORK) -> int:
    # Exact: timestamp() * 1000 is a millisecond off for some moments.
    return (moment.replace(tzinfo=ZoneInfo(zone)) - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(
        milliseconds=1
    )


class Punctuated(WatermarkGenerator):
    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        output.emit_watermark(event)

    def on_periodic_emit(self, output: Any) -> None:
        pass


class Timed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value)
        ctx.timer_service().register_event_time_timer(value + timedelta(hours=1))
        ctx.timer_service().delete_event_time_timer(value + timedelta(hours=1))
        yield "seen", ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "fired", timestamp


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.sampled_from([NEW_YORK, "UTC", "Asia/Kolkata"]))
def test_a_naive_datetime_is_the_same_everywhere(moment: datetime, zone: str) -> None:
    def program(env: Any, times: Any) -> Any:
        strategy = WatermarkStrategy.for_generator(Punctuated).with_timestamp_assigner(lambda time: time)
        return times.assign_timestamps_and_watermarks(strategy).key_by(lambda watermark: 1).process(Timed())

    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    expected = millis(moment, zone)
    with ProgramTestHarness(program, time_zone=zone) as harness:
        harness.push("times", moment)
        harness.run_epoch()
        assert harness.get_output() == [("seen", expected), ("fired", expected)]
    encoder = RowEncoder(StructType().add("at", "timestamp"), "op", zone)
    assert timestamps_ms(encoder.encode([moment]).column(0)).tolist() == [expected]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms"), pa.date32()])
def test_a_column_without_time_zone_is_in_the_sessions(kind: pa.DataType) -> None:
    env = StreamExecutionEnvironment().set_time_zone(NEW_YORK)
    stream: Any = env.from_collection([1])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    step = stream.assign_timestamps_and_watermarks(strategy)._plain_step()
    from pillarbox._task.vertex import ChainNode
    from pillarbox.testing import OneInputStreamOperatorTestHarness

    with OneInputStreamOperatorTestHarness(ChainNode("times", "times", step.factory), time_zone=NEW_YORK) as harness:
        moment: Any = NOON if pa.types.is_timestamp(kind) else NOON.date()
        batch = pa.record_batch({"at": pa.array([moment], kind)})
        harness.push_records(ArrowRecords(batch))
        midnight = datetime.combine(NOON, datetime.min.time())
        assert harness.get_records()[0].timestamp == millis(NOON if pa.types.is_timestamp(kind) else midnight)


def test_a_window_of_naive_datetimes() -> None:
    def counted(env: StreamExecutionEnvironment) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        stamped = env.from_collection([("a", NOON), ("a", date(2024, 7, 1))]).assign_timestamps_and_watermarks(strategy)
        windows = stamped.key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of("1 day", time_zone=NEW_YORK))
        return windows.reduce(lambda a, b: cast("Any", ("a", 2))).execute_and_collect()

    assert counted(StreamExecutionEnvironment().set_time_zone(NEW_YORK)) == [("a", 2)]
    with pytest.raises(OperatorError, match=r"has no time zone, and there is no Spark session.*env.set_time_zone\("):
        counted(StreamExecutionEnvironment())


@pytest.mark.parametrize("what", ["timer", "deleted timer", "watermark", "event time"])
def test_without_a_time_zone_it_is_refused(what: str) -> None:
    class Timer(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            service = ctx.timer_service()
            (service.delete_event_time_timer if what == "deleted timer" else service.register_event_time_timer)(value)

    def program(env: Any, times: Any) -> Any:
        generator = WatermarkStrategy.for_generator(Punctuated)
        stamp = (lambda value: value) if what == "event time" else (lambda value: 5)
        return times.assign_timestamps_and_watermarks(generator.with_timestamp_assigner(stamp))

    if "timer" in what:
        with harness_for(Timer(), key_by=lambda value: 1) as harness:
            with pytest.raises(ProgramError, match=r"timer cannot be set or deleted .* has no time zone"):
                harness.push(NOON)
            harness.push(NOON.replace(tzinfo=timezone.utc))
    else:
        with ProgramTestHarness(program) as whole:
            whole.push("times", NOON)
            with pytest.raises(OperatorError, match="has no time zone"):
                whole.run_epoch()


def test_wrong_time_zones() -> None:
    env = StreamExecutionEnvironment()
    for wrong in ("Mars/Base", "", 5, None):
        with pytest.raises(
            ProgramError, match=r"set_time_zone\(\): time_zone= must be the name of a time zone, such as"
        ):
            env.set_time_zone(wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(ProgramError, match="time_zone= must be the name of a time zone"):
                harness_for(Timed(), key_by=lambda value: 1, time_zone=wrong)
    with pytest.raises(ProgramError, match=r"set spark.sql.session.timeZone on the session"):
        StreamExecutionEnvironment(object()).set_time_zone("UTC").get_parallelism()  # type: ignore[arg-type]
