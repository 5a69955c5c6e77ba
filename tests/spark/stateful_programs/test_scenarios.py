"""Cases from Spark's own tests of these APIs, with the same assertions for Spark and pillarbox.

They cover Spark's ``test_pandas_transform_with_state.py``, ``..._state_variable.py`` and
``test_pandas_grouped_map_with_state.py``. See ``test_same_as_spark.py`` for time-to-live, timers, late rows, null keys,
a single partition and restarts, and ``test_group_by.py`` for downstream operators.

These tests are left out, because they concern Spark's state store:

- ``..._map_state_metadata``, ``..._list_state_metadata`` and ``..._value_state_metadata``: ``test_adopt.py`` reads
  states with the same sources;
- the custom metrics in ``..._query_restarts``, which count calls of RocksDB;
- ``test_schema_evolution_scenarios``, ``test_schema_evolution_fails`` and ``test_not_nullable_fails``, which are about
  Avro;
- ``..._checkpoint_v2.py``, which repeats the tests with another format of Spark's state files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox

pytestmark = pytest.mark.slow("short queries on Spark and on pillarbox")
GROUPS: dict[str, Callable[..., Any]] = {"pillarbox": pillarbox.group_by}
if "PILLARBOX_LONG" in os.environ:
    GROUPS["spark"] = DataFrame.groupBy


@pytest.fixture(params=list(GROUPS))
def group_by(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return GROUPS[request.param]


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()), key=repr)


class Frames(StatefulProcessor):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        yield from self.function(key, rows)


class Composite(StatefulProcessor):
    def init(self, handle):
        self.value = handle.getValueState("value", "a INT, b ARRAY<STRING>, c MAP<STRING, INT>, d STRUCT<e: DATE>")
        self.items = handle.getListState("items", "id STRING, tags ARRAY<STRUCT<n: INT, s: STRING>>")
        self.map = handle.getMapState("map", "a STRING, b STRUCT<c: INT>", "d MAP<STRING, ARRAY<INT>>")

    def handleInputRows(self, key, rows, timerValues):
        list(rows)
        self.value.update((1, ["x", "y"], {"k": 5}, {"e": None}))
        self.items.put([("i", [(1, "one"), Row(n=2, s="two")]), ("j", None)])
        self.items.appendList([("k", [])])
        self.map.updateValue(("a", (1,)), ({"b": [1, 2]},))
        a, b, c, d = self.value.get()
        b.append("of the user's own")  # it changes no state
        tags = [[(tag.n, tag.s) for tag in tags or ()] for _, tags in self.items.get()]
        values = [a, self.value.get()[1], c, d, tags, list(self.map.keys()), self.map.getValue(("a", (1,))).d]
        yield Row(said=repr(values))


def test_values_in_values(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    text = group_by(spark.range(1), "id").transformWithState(Composite(), "said STRING", "append", "None").head().said
    assert text == (
        "[1, ['x', 'y'], {'k': 5}, Row(e=None), [[(1, 'one'), (2, 'two')], [], []], [('a', Row(c=1))], {'b': [1, 2]}]"
    )


class Large(StatefulProcessor):
    def init(self, handle):
        self.value = handle.getValueState("value", "s STRING")
        self.items = handle.getListState("items", "s STRING, n INT")
        self.map = handle.getMapState("map", "s STRING", "s STRING")

    def handleInputRows(self, key, rows, timerValues):
        list(rows)
        large = "a" * (512 * 1024)
        self.value.update((large,))
        self.items.put([(large, number) for number in range(3)])
        self.items.appendList([("b", number) for number in range(3, 250)])
        self.map.updateValue((large,), (large + "c",))
        # Two iterators at once. The state changes meanwhile.
        numbers, pairs = [], zip(self.items.get(), self.items.get())
        for (first, n), (second, m) in pairs:
            assert first == second and n == m
            numbers.append(n)
            if n == 0:
                self.items.clear()
        sizes = (len(self.value.get()[0]), numbers == list(range(250)), len(list(self.items.get())))
        yield Row(text=f"{sizes} {[len(value) for (value,) in self.map.values()]} {self.map.containsKey((large,))}")


def test_large_values_and_long_lists(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    row = group_by(spark.range(1), "id").transformWithState(Large(), "text STRING", "append", "None").head()
    assert row.text == "(524288, True, 0) [524289] True"


NESTED = "name STRING, items ARRAY<STRUCT<n: INT, tags: MAP<STRING, STRING>>>, by MAP<STRING, STRUCT<a: ARRAY<DOUBLE>>>"


class Nested(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        list(rows)
        yield Row(name="full", items=[Row(n=1, tags={"x": "y"}), Row(n=None, tags={})], by={"k": Row(a=[1.5, None])})
        yield Row(name="empty", items=[], by={})
        yield Row(name="null", items=None, by=None)


class NestedFrames(Nested):
    def handleInputRows(self, key, rows, timerValues):
        for row in super().handleInputRows(key, rows, timerValues):
            yield pd.DataFrame([row.asDict(recursive=True)])


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "frames"])
def test_values_in_values_of_results(spark: SparkSession, group_by: Callable[..., Any], pandas: bool) -> None:
    grouped = group_by(spark.range(1), "id")
    transform = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    assert rows_of(transform(NestedFrames() if pandas else Nested(), NESTED, "append", "None")) == [
        ("empty", [], {}),
        ("full", [Row(n=1, tags={"x": "y"}), Row(n=None, tags={})], {"k": Row(a=[1.5, None])}),
        ("null", None, None),
    ]


class Sums(StatefulProcessor):
    def init(self, handle):
        self.sum = handle.getValueState("sum", "n INT")

    def handleInitialState(self, key, initialState, timerValues):
        assert (initialState.one, initialState.other) == key
        self.sum.update((initialState.first,))

    def handleInputRows(self, key, rows, timerValues):
        n = (self.sum.get() or (0,))[0]
        for row in rows:
            assert (row.id1, row.id2) == key
            n += row.v
        yield Row(id2=key[1], n=n, id1=key[0])


def test_the_columns_of_a_key_may_be_anywhere(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    df = spark.sql("SELECT * FROM VALUES ('a', 5, 1), ('a', 6, 1), ('a', 7, 2), (NULL, 8, 1) AS (id1, v, id2)")
    first = spark.sql("SELECT * FROM VALUES (100, 1, 'a'), (200, 3, 'a'), (300, 1, NULL) AS (first, other, one)")
    grouped, initial = group_by(df, "id1", "id2"), group_by(first, "one", "other")
    sums = grouped.transformWithState(Sums(), "id1 STRING, id2 INT, n INT", "append", "None", initial)
    assert rows_of(sums) == [("a", 1, 111), ("a", 2, 7), (None, 1, 308)]


class Starts(StatefulProcessor):
    pandas = False

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n INT")

    def handleInitialState(self, key, initialState, timerValues):
        first = initialState["first"].tolist() if self.pandas else [initialState.first]
        self.total.update(((self.total.get() or (0,))[0] + sum(first),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleInputRows(self, key, rows, timerValues):
        values = [value for frame in rows for value in frame["v"]] if self.pandas else [row.v for row in rows]
        self.total.update(((self.total.get() or (0,))[0] + sum(values),))
        yield self.result(f"rows {key[0]}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.result(f"timer {key[0]}")

    def result(self, what: str) -> Any:
        n = self.total.get()[0]
        return pd.DataFrame({"what": [what], "n": [n]}) if self.pandas else Row(what=what, n=n)


class StartsWithFrames(Starts):
    pandas = True


FIRST = "SELECT * FROM VALUES ('a', 10), ('b', 20), ('a', 5) AS (name, first)"
STARTED = [("rows a", 17), ("rows c", 3), ("timer a", 17), ("timer b", 20)]


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "frames"])
def test_an_initial_state_of_a_batch_query(spark: SparkSession, group_by: Callable[..., Any], pandas: bool) -> None:
    df, first = spark.sql("SELECT * FROM VALUES ('a', 2), ('c', 3) AS (k, v)"), spark.sql(FIRST)
    grouped, initial = group_by(df, "k"), group_by(first, "name")
    transform = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    processor = StartsWithFrames() if pandas else Starts()
    assert rows_of(transform(processor, "what STRING, n INT", "append", "ProcessingTime", initial)) == STARTED


def test_an_initial_state_is_for_the_first_micro_batch(
    spark: SparkSession, group_by: Callable[..., Any], tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    results: list[list[tuple[Any, ...]]] = []
    (tmp_path / "in").mkdir()

    def run(number: int, *rows: str) -> list[tuple[Any, ...]]:
        (tmp_path / "in" / f"{number}.csv").write_text("\n".join(rows))
        df = session.readStream.schema("k STRING, v INT").csv(str(tmp_path / "in"))
        grouped, initial = group_by(df, "k"), group_by(session.sql(FIRST), "name")
        counts = grouped.transformWithState(Starts(), "what STRING, n INT", "append", "ProcessingTime", initial)
        results.clear()
        writer = counts.writeStream.foreachBatch(lambda batch, _: results.append(rows_of(batch)))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()
        return [row for batch in results for row in batch]

    assert run(1, "a,2", "c,3") == STARTED
    assert run(2, "b,1", "c,1") == [("rows b", 21), ("rows c", 4)]


def test_columns_of_frames_go_by_name_or_by_position(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    def frames(key, rows):
        list(rows)
        yield pd.DataFrame({"b": ["x"], "more": [0], "a": [1]})
        yield pd.DataFrame([[2, "y"]])
        yield pd.DataFrame()
        yield pd.DataFrame({"a": [None, 3.0], "b": [None, "z"]})

    df = group_by(spark.range(1), "id").transformWithStateInPandas(Frames(frames), "a INT, b STRING", "append", "None")
    assert rows_of(df) == [(1, "x"), (2, "y"), (3, "z"), (None, None)]


def test_integers_may_stand_for_decimals_if_the_session_says_so(
    spark: SparkSession, group_by: Callable[..., Any]
) -> None:
    def frames(key, rows):
        yield pd.DataFrame({"a": [5]})

    session = spark.newSession()
    session.conf.set("spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled", "true")
    grouped = group_by(session.range(1), "id")
    assert rows_of(grouped.transformWithStateInPandas(Frames(frames), "a DECIMAL(5, 2)", "append", "None")) == [
        (Decimal("5.00"),)
    ]


def test_frames_are_bounded_by_rows_and_bytes(spark: SparkSession, group_by: Callable[..., Any]) -> None:
    def frames(key, rows):
        yield pd.DataFrame({"n": [len(frame) for frame in rows]})

    def sizes(name: str, value: str) -> list[int]:
        session = spark.newSession()
        session.conf.set(f"spark.sql.execution.arrow.{name}", value)
        grouped = group_by(session.range(10, numPartitions=1).selectExpr("id", "1 AS k"), "k")
        df = grouped.transformWithStateInPandas(Frames(frames), "n INT", "append", "None")
        return [row.n for row in df.collect()]

    assert sizes("maxRecordsPerBatch", "4") == [4, 4, 2]
    assert sum(sizes("maxBytesPerBatch", "48B")) == 10
    assert len(sizes("maxBytesPerBatch", "48B")) > 2


def test_a_function_without_a_timeout(spark: SparkSession, group_by: Callable[..., Any], tmp_path: Path) -> None:
    def count(key, frames, state):
        n = sum(map(len, frames)) + (state.getOption or (0,))[0]
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "w": [str(state.getCurrentWatermarkMs() >= 0)]})

    (tmp_path / "in").mkdir()
    for number, rows in enumerate(["a,2024-01-01T00:00:00Z\na,2024-01-01T00:00:05Z", "a,2023-01-01T00:00:00Z"]):
        path = tmp_path / "in" / f"{number}.csv"
        path.write_text(rows)
        os.utime(path, (number, number))
    df = spark.readStream.schema("k STRING, t TIMESTAMP").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "in"))
    grouped = group_by(df.withWatermark("t", "1 second"), "k")
    counts = grouped.applyInPandasWithState(count, "k STRING, n INT, w STRING", "n INT", "update", "NoTimeout")
    results: list[tuple[Any, ...]] = []
    writer = counts.writeStream.foreachBatch(lambda batch, _: results.extend(rows_of(batch))).outputMode("update")
    writer.option("checkpointLocation", str(tmp_path / "out")).trigger(availableNow=True).start().awaitTermination()
    # Without a timeout no row is late.
    assert results == [("a", 2, "True"), ("a", 3, "True")]
