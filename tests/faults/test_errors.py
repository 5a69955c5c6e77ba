"""What a user sees when a function, a key or an output is wrong: the operator, the value and what to do, through all
of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pillarbox import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.faults.job import make_events, read_events, write_events

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


class Divides(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        return [100 // (value.id - 3)]


class DoesNotOpen(Divides):
    def open(self, runtime_context: RuntimeContext) -> None:
        raise ConnectionError("no route to the database")


class LateState(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.context = runtime_context

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        self.context.get_state(ValueStateDescriptor("late"))
        return None


def stamp(value: Any, previous: int) -> int:
    return int(str(value.key))


Program = Callable[[DataStream], DataStream]


@pytest.mark.parametrize(
    ("program", "columns", "says"),
    [
        pytest.param(
            lambda s: s.map(lambda row: 1 // (row.id - 3)).name("divide"),
            "x LONG",
            ["operator 'divide' failed at the record Row(id=3, key='k')", "ZeroDivisionError"],
            id="map",
        ),
        pytest.param(
            lambda s: s.key_by("key").process(Divides()).name("divide"),
            "x LONG",
            ["operator 'divide' failed at the record Row(id=3, key='k')", "ZeroDivisionError"],
            id="process_element",
        ),
        pytest.param(
            lambda s: s.key_by("key").process(DoesNotOpen()).name("lookup"),
            "x LONG",
            ["operator 'lookup' failed in open(): ConnectionError: no route to the database"],
            id="open",
        ),
        pytest.param(
            lambda s: s.key_by(lambda row: 1 // (row.id - 3)).process(Divides()),
            "x LONG",
            ["the key function failed at the record Row(id=3, key='k')", "ZeroDivisionError"],
            id="key function",
        ),
        pytest.param(
            lambda s: s.key_by(lambda row: [row.key]).process(Divides()),
            "x LONG",
            ["has the key ['k'] of type list", "let the key function give a string, a number, a date, a tuple"],
            id="key that cannot be hashed",
        ),
        pytest.param(
            lambda s: s.assign_timestamps_and_watermarks(
                WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(stamp)
            ),
            "id LONG, key STRING",
            ["the timestamp assigner failed at the record Row(id=0, key='k'): ValueError: invalid literal"],
            id="timestamp assigner",
        ),
        pytest.param(
            lambda s: s.map(lambda row: (row.id, row.key)).name("pair"),
            "id LONG, n INT",
            ["pair", "'n'", "'k'"],
            id="output of another type",
        ),
        pytest.param(
            lambda s: s.map(lambda row: (row.id, 1 << 40)).name("pair"),
            "id LONG, n INT",
            ["pair", "'n'", "1099511627776"],
            id="output out of range",
        ),
        pytest.param(
            lambda s: s.key_by("key").process(LateState()).name("late"),
            "x LONG",
            ["operator 'late' asks for the state 'late' while records are processed: declare all states in open()"],
            id="state declared late",
        ),
    ],
)
def test_errors_of_a_batch_program(spark: SparkSession, program: Program, columns: str, says: list[str]) -> None:
    df = spark.range(5).selectExpr("id", "'k' AS key").coalesce(1)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    with pytest.raises(PythonException) as caught:
        program(env.from_dataframe(df)).to_dataframe(columns).collect()
    text = str(caught.value)
    for part in says:
        assert part in text, text[-1500:]


def test_an_error_of_a_streaming_program(spark: SparkSession, tmp_path: Path) -> None:
    write_events(make_events(1, epochs=1), tmp_path / "in")
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    df: DataFrame = (
        env.from_dataframe(read_events(spark, tmp_path / "in"))
        .key_by("key")
        .process(Divides())
        .name("divide")
        .to_dataframe("x LONG")
    )
    query = (
        df.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert "operator 'divide' failed at the record Row(id=3, key=" in text
    assert "ZeroDivisionError" in text
