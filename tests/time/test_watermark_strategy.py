from __future__ import annotations

import datetime
import functools
import operator
import pickle
from collections import namedtuple
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import StructType

from pillarbox._errors import ProgramError
from pillarbox._rows import timestamps_ms
from pillarbox._time.duration import Duration
from pillarbox._time.timestamp_assigner import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    ColumnTimestampAssigner,
    TimestampAssigner,
    as_timestamp_assigner,
    to_timestamp,
)
from pillarbox._time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarksGenerator,
    WatermarkGenerator,
    WatermarksWithIdleness,
)
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.codecs import time_zone
from pillarbox._types.row_encoder import RowEncoder

UTC = datetime.timezone.utc


class Second(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Own(WatermarkGenerator):
    def on_event(self, event, timestamp, output):
        output.emit_watermark(timestamp)

    def on_periodic_emit(self, output):
        pass


def extract(assigner, value, record_timestamp=MIN_TIMESTAMP):
    wrapped = as_timestamp_assigner(assigner)
    return to_timestamp(wrapped.extract_timestamp(value, record_timestamp), None, wrapped, value)


class TestStrategy:
    def test_the_generators(self):
        assert type(WatermarkStrategy.for_monotonous_timestamps().create_generator()) is (AscendingTimestampsWatermarks)
        assert type(WatermarkStrategy.no_watermarks().create_generator()) is NoWatermarksGenerator
        assert type(WatermarkStrategy.for_generator(Own).create_generator()) is Own
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
        generator = strategy.create_generator()
        assert type(generator) is BoundedOutOfOrdernessWatermarks
        assert generator._distance == 5001
        assert strategy.create_generator() is not generator

    def test_defaults(self):
        strategy = WatermarkStrategy.no_watermarks()
        assert strategy.timestamp_assigner is None
        assert strategy.timestamp_column is None
        assert strategy.idle_timeout is None
        assert strategy.progress_timeout is None

    def test_each_refinement_is_a_new_strategy(self):
        first = WatermarkStrategy.for_monotonous_timestamps()
        second = first.with_idleness("1 minute")
        third = second.with_timestamp_assigner("ts")
        fourth = third.with_timestamp_assigner(lambda value: 1)
        assert (first.idle_timeout, second.idle_timeout, third.idle_timeout) == (
            None,
            60_000,
            60_000,
        )
        assert (second.timestamp_column, third.timestamp_column) == (None, "ts")
        assert second.timestamp_assigner is None
        assert fourth.timestamp_column is None
        assert fourth.timestamp_assigner is not None
        assert fourth.timestamp_assigner.extract_timestamp(None, 0) == 1
        with pytest.raises(AttributeError):
            first.idle_timeout = 1  # type: ignore[misc]

    def test_idleness_is_watched_where_there_is_a_clock(self):
        strategy = WatermarkStrategy.no_watermarks().with_idleness(10)
        assert type(strategy.create_generator()) is NoWatermarksGenerator
        assert type(strategy.create_generator(lambda: 0)) is WatermarksWithIdleness
        without = WatermarkStrategy.no_watermarks()
        assert type(without.create_generator(lambda: 0)) is NoWatermarksGenerator

    def test_a_column_is_known_by_name_and_works_record_by_record(self):
        strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner("ts")
        assert strategy.timestamp_column == "ts"
        assert strategy.timestamp_assigner is not None
        assert strategy.timestamp_assigner.extract_timestamp({"ts": 5}, 0) == 5

    @pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
    def test_it_is_pickled(self, dumps):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(7).with_timestamp_assigner("ts").with_idleness(9)
        copy = pickle.loads(dumps(strategy))
        assert repr(copy) == repr(strategy)
        assert copy.create_generator()._distance == 8
        assert copy.timestamp_assigner.extract_timestamp(Row(ts=3), 0) == 3

    def test_lambdas_are_pickled_with_it(self):
        strategy = WatermarkStrategy.for_generator(functools.partial(Own)).with_timestamp_assigner(
            lambda value, record_timestamp: value + record_timestamp
        )
        copy = pickle.loads(cloudpickle.dumps(strategy))
        assert copy.timestamp_assigner.extract_timestamp(1, 2) == 3
        assert copy.create_generator().batchable is False

    def test_wrong_use(self):
        with pytest.raises(ValueError, match="negative"):
            WatermarkStrategy.for_bounded_out_of_orderness(-1)
        with pytest.raises(ValueError, match="idle timeout must be at least"):
            WatermarkStrategy.no_watermarks().with_idleness("0 s")
        with pytest.raises(ProgramError, match=r"the class Own, not the instance"):
            WatermarkStrategy.for_generator(Own())  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="takes a function that creates"):
            WatermarkStrategy.for_generator(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must create a WatermarkGenerator, not 5"):
            WatermarkStrategy.for_generator(lambda: 5).create_generator()  # type: ignore[arg-type,return-value]
        with pytest.raises(ValueError, match="column name is empty"):
            WatermarkStrategy.no_watermarks().with_timestamp_assigner("")

    def test_it_shows_how_it_was_made(self):
        strategy = (
            WatermarkStrategy.for_bounded_out_of_orderness("5 s").with_timestamp_assigner("ts").with_idleness("1 min")
        )
        shown = (
            "WatermarkStrategy.for_bounded_out_of_orderness(5000 ms)"
            ".with_timestamp_assigner(column 'ts').with_idleness(60000 ms)"
        )
        assert repr(strategy) == shown
        assert repr(strategy.with_wall_clock_progress("2 s")) == f"{shown}.with_wall_clock_progress(2000 ms)"
        own = WatermarkStrategy.for_generator(functools.partial(Own))
        assert repr(own).startswith("WatermarkStrategy.for_generator(functools.partial(")


class TestAssigners:
    def test_an_object(self):
        assert extract(Second(), ("a", 5)) == 5

    def test_an_object_of_a_foreign_class(self):
        class Foreign:
            def extract_timestamp(self, value, record_timestamp):
                return record_timestamp

        assert extract(Foreign(), None, 7) == 7

    def test_functions_by_signature(self):
        assert extract(lambda value: value, 5) == 5
        assert extract(lambda value, before: before, 5, 6) == 6
        assert extract(lambda value, record_timestamp=None: record_timestamp, 5, 6) == 6
        assert extract(lambda value, factor=1000: value * factor, 5, 6) == 5000
        assert extract(lambda *args: len(args), 5) == 1
        assert extract(operator.itemgetter(1), ("a", 5)) == 5
        assert extract(int, "5") == 5
        assert extract(functools.partial(operator.add, 1), 5) == 6

    def test_a_bound_method(self):
        class Clock:
            def read(self, value, before):
                return value - before

        assert extract(Clock().read, 5, 2) == 3

    def test_the_signature_is_read_once(self, monkeypatch):
        assigner = as_timestamp_assigner(lambda value: value)
        monkeypatch.setattr("inspect.signature", None)
        assert assigner.extract_timestamp(5, 0) == 5

    def test_columns_of_all_kinds_of_records(self):
        @dataclass
        class Event:
            count: int

        point = namedtuple("point", ["x", "count"])
        for record in ({"count": 5}, Row(x=1, count=5), point(1, 5), Event(5)):
            assert extract("count", record) == 5

    @pytest.mark.parametrize("record", [{"a": 1}, Row(a=1), (1, 2), 5, None])
    def test_a_column_that_is_not_there(self, record):
        with pytest.raises(ValueError, match=r"no timestamp column 'ts' in the record"):
            extract("ts", record)

    def test_an_assigner_is_not_wrapped_twice(self):
        for assigner in ("ts", lambda v: v, lambda v, t: t, Second()):
            wrapped = as_timestamp_assigner(assigner)
            assert as_timestamp_assigner(wrapped) is wrapped
        assert isinstance(as_timestamp_assigner("ts"), ColumnTimestampAssigner)

    @pytest.mark.parametrize(
        ("assigner", "message"),
        [
            (5, "5 is not a timestamp assigner"),
            (None, "None is not a timestamp assigner"),
            (Second, r"pass Second\(\), not Second"),
            (lambda: 1, "must take"),
            (lambda a, b, c: 1, "must take"),
            (lambda a, *, b: 1, "must take"),
        ],
    )
    def test_invalid_timestamp_assigners_are_refused(self, assigner, message):
        with pytest.raises(ProgramError, match=message):
            as_timestamp_assigner(assigner)


class TestTimestamps:
    def test_the_limits_are_those_of_64_bits(self):
        limits = np.iinfo(np.int64)
        assert (limits.min, limits.max) == (MIN_TIMESTAMP, MAX_WATERMARK)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (5, 5),
            (-5, -5),
            (MIN_TIMESTAMP, MIN_TIMESTAMP),
            (MAX_WATERMARK, MAX_WATERMARK),
            (np.int64(5), 5),
            (datetime.datetime(1970, 1, 1, 0, 0, 1), 1000),
            (datetime.date(1970, 1, 2), 86_400_000),
            (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
            (
                datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
                0,
            ),
            (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
            (datetime.datetime(2026, 1, 2, 3, 4, 5, 678_999), 1_767_323_045_678),
            (pd.Timestamp("2026-01-02T03:04:05.678999999"), 1_767_323_045_678),
        ],
    )
    def test_accepted(self, value, expected):
        assert to_timestamp(value, UTC) == expected
        assert type(to_timestamp(value, UTC)) is int

    @given(st.integers(-62_135_596_800_000, 253_402_300_799_999), st.integers(0, 999))
    def test_datetimes_are_exact(self, millis, micros):
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=millis, microseconds=micros)
        assert to_timestamp(moment, UTC) == millis
        assert to_timestamp(moment.replace(tzinfo=UTC)) == millis

    @pytest.mark.parametrize("value", [None, True, np.True_, 1.0, "5", pd.NaT, [5]])
    @pytest.mark.parametrize("kind", ["object", "f(value)", "f(value, before)", "column"])
    def test_a_bad_one_is_named(self, value, kind):
        class Bad(TimestampAssigner):
            def extract_timestamp(self, record, record_timestamp):
                return value

        assigner = {
            "object": Bad(),
            "f(value)": lambda record: value,
            "f(value, before)": lambda record, before: value,
            "column": "ts",
        }[kind]
        with pytest.raises(TypeError, match="milliseconds since the epoch are expected") as caught:
            extract(assigner, {"ts": value, "long": "x" * 1000})
        message = str(caught.value)
        assert repr(value) in message
        assert "for the record {'ts'" in message
        assert len(message) < 400

    @pytest.mark.parametrize("value", [MAX_WATERMARK + 1, MIN_TIMESTAMP - 1])
    def test_64_bits(self, value):
        with pytest.raises(ValueError, match="does not fit in 64 bits"):
            extract(lambda record: value, "record")


class TestTimeZones:
    """A naive datetime is in the session's time zone, as if Spark cast TIMESTAMP_NTZ to TIMESTAMP."""

    @pytest.mark.parametrize("value", [datetime.datetime(2026, 1, 1), datetime.date(2026, 1, 1), pd.Timestamp(0)])
    def test_without_one_it_is_no_point_in_time(self, value):
        with pytest.raises(ValueError, match=r"has no time zone, .* or set a default with env.set_time_zone"):
            to_timestamp(value)

    @pytest.mark.parametrize(
        ("wall", "utc"),
        [
            ((2024, 7, 1, 12), (2024, 7, 1, 16)),
            ((2024, 1, 1, 12), (2024, 1, 1, 17)),
            ((2024, 11, 3, 1, 30), (2024, 11, 3, 5, 30)),  # repeated: the first time
            ((2024, 3, 10, 2, 30), (2024, 3, 10, 7, 30)),  # left out: as far behind the gap
            ((1883, 11, 18, 12, 3, 57), (1883, 11, 18, 16, 59, 59)),  # not at a full minute
        ],
    )
    def test_clocks_that_are_set(self, wall, utc):
        moment, expected = datetime.datetime(*wall), datetime.datetime(*utc).replace(tzinfo=UTC)
        assert to_timestamp(moment, ZoneInfo("America/New_York")) == to_timestamp(expected)

    @given(
        st.lists(st.datetimes(datetime.datetime(1850, 1, 1), datetime.datetime(2100, 1, 1)), min_size=1),
        st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "+05:45"]),
    )
    def test_values_and_columns_agree(self, moments, name):
        zone = time_zone(name)
        wall = pa.array(moments, pa.timestamp("us"))
        expected = [to_timestamp(moment, zone) for moment in moments]
        assert timestamps_ms(wall, zone).tolist() == expected
        encoder = RowEncoder(StructType().add("at", "timestamp"), "op", name)
        assert timestamps_ms(encoder.encode(moments).column(0)).tolist() == expected
        days = [moment.date() for moment in moments]
        assert timestamps_ms(pa.array(days), zone).tolist() == [to_timestamp(day, zone) for day in days]
