from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, metrics
from pillarbox._errors import TypeMismatchError
from pillarbox._runtime.spark.failures import unwrapped_failures

COLUMNS = """
    id LONG, truth BOOLEAN, tiny BYTE, small SHORT, number INT, single FLOAT, double DOUBLE, text STRING, raw BINARY,
    nothing VOID, exact DECIMAL(38, 18), price DECIMAL(5, 2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE,
    took INTERVAL DAY TO SECOND, list ARRAY<BIGINT>, times ARRAY<TIMESTAMP>,
    map MAP<STRING, ARRAY<STRUCT<x: BIGINT, at: TIMESTAMP>>>, struct STRUCT<x: BIGINT NOT NULL, m: MAP<INT, DATE>>
"""
AT = dt.datetime(2024, 3, 10, 2, 30, 0, 7, tzinfo=dt.timezone.utc)  # an hour that Los Angeles does not have
FULL = (
    *(True, -128, 2**15 - 1, -(2**31), 0.5, 1e300, "Zürich", b"\x00\xff", None, Decimal("12345678901234567890.5")),
    *(Decimal("-999.99"), AT, dt.datetime(1582, 10, 4, 12), dt.date(9999, 12, 31)),
    *(-dt.timedelta(days=100_000, microseconds=1), [1, None, 2**62], [AT, None]),
    *({"k": [(1, AT), None, (None, None)]}, (7, {1: dt.date(1, 1, 1)})),
)
EMPTY = (None,) * len(FULL)


class AllTypes(KeyedProcessFunction):
    """Emits a row of values, a row of nulls, and a row of empty values."""

    def process_element(self, value, ctx):
        yield (value.id, *(FULL if value.id % 2 else EMPTY))
        yield {"id": value.id, "list": [], "map": {}, "text": ""}


class TooLarge(KeyedProcessFunction):
    """Emits a number that is too large for its column."""

    def process_element(self, value, ctx):
        yield 2**40 if value.id == 3 else value.id


def program(df, function, columns):
    env = (
        StreamExecutionEnvironment.get_execution_environment(df.sparkSession).set_parallelism(2).set_max_parallelism(2)
    )
    return env.from_dataframe(df).key_by("id").process(function).to_dataframe(columns)


def stream_of(spark, df, folder: Path):
    df.write.parquet(str(folder))
    return spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 2).parquet(str(folder))


def as_text(df):
    return df.select(
        F.to_json(F.struct("*"), {"ignoreNullFields": "false"}), F.struct("*").cast("string"), F.hex("raw")
    )


@pytest.fixture
def zone(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def test_all_types_come_out_of_a_stream_as_out_of_a_batch(spark, zone, tmp_path):
    data = spark.range(0, 20, 1, 4)
    streaming = program(stream_of(spark, data, tmp_path / "in"), AllTypes(), COLUMNS)
    results: list[tuple[str, ...]] = []
    query = (
        streaming.writeStream.foreachBatch(lambda batch, number: results.extend(map(tuple, as_text(batch).collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batch = program(data, AllTypes(), COLUMNS)
    assert batch.schema == streaming.schema
    expected = [tuple(row) for row in as_text(batch).collect()]
    assert len(expected) == 40 and Counter(results) == Counter(expected)
    frame = spark.createDataFrame([(1, *FULL)], batch.schema)
    assert tuple(as_text(frame).first()) in results
    # Each task's metrics are observed, and are no rows.
    tasks = [task for progress in query.recentProgress for task in metrics(progress)]
    assert {level: sum(task.records_in for task in tasks if task.level == level) for level in (0, 1)} == {0: 20, 1: 20}


def test_only_required_parts_of_nested_types_take_another_pass(spark):
    """Spark would make required fields nullable."""
    stream = spark.readStream.format("rate").load().select(F.col("value").alias("id"))

    def steps(columns):
        planned = program(stream, AllTypes(), columns)
        assert planned.schema == program(spark.range(1), AllTypes(), columns).schema
        return str(planned._jdf.queryExecution().analyzed().toString()).count("MapInArrow")

    assert steps("id LONG, list ARRAY<BIGINT>, map MAP<STRING, STRING>, text STRING") == 1
    assert steps("id LONG NOT NULL, list ARRAY<BIGINT>, map MAP<STRING, STRING>, text STRING") == 1
    assert steps("id LONG, struct STRUCT<x: BIGINT NOT NULL>") == 2


@pytest.mark.usefixtures("one_attempt")
def test_values_that_do_not_fit_a_column_are_an_error_of_the_operator(spark, tmp_path):
    streaming = program(stream_of(spark, spark.range(5), tmp_path / "in"), TooLarge(), "n INT")
    query = (
        streaming.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    sentence = r"operator 'process: TooLarge': the field 'n' is declared int, but the value 1099511627776 does not fit"
    with pytest.raises(StreamingQueryException, match=sentence):
        query.awaitTermination()
    with pytest.raises(TypeMismatchError, match=sentence), unwrapped_failures():
        program(spark.range(5), TooLarge(), "n INT").collect()
