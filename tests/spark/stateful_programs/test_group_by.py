"""``group_by`` on Spark: results, refused arguments, and errors in a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import IllegalArgumentException, ParseException, PySparkRuntimeError, UnsupportedOperationException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from pillarbox import ProgramError, StreamExecutionEnvironment

OUTPUT = "k STRING, n LONG, t TIMESTAMP"
SCHEMA = "k STRING, t TIMESTAMP"


class Count(StatefulProcessor):
    """Counts a key's rows. A timer emits the count one minute after the last row."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n LONG")
        self.times = handle.getListState("times", "t TIMESTAMP")
        self.by_second = handle.getMapState("by_second", "second INT", "n INT")

    def handleInputRows(self, key, rows, timerValues):
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        n = (self.count.get() or (0,))[0]
        for row in rows:
            if row.k == "wrong":
                raise ValueError("a wrong row")
            n += 1
            self.times.appendValue((row.t,))
            self.by_second.updateValue((row.t.second,), (n,))
            self.handle.registerTimer(int(row.t.timestamp() * 1000) + 60_000)
        self.count.update((n,))
        yield Row(k=key[0], n=n, t=row.t)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=key.k, n=-self.count.get()[0], t=pd.Timestamp(expiredTimerInfo.getExpiryTimeInMs(), unit="ms"))


def write(folder: Path, number: int, *rows: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.csv").write_text("".join(f"{k},2024-01-01T{t}Z\n" for k, t in rows))


def source(spark: SparkSession, folder: Path) -> Any:
    return spark.readStream.schema(SCHEMA).csv(str(folder)).withWatermark("t", "0 seconds")


def run(df: Any, checkpoint: Path) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    query = (
        df.writeStream.foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect())))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(rows, key=repr)


@pytest.mark.slow("five short queries")
def test_state_is_kept_rescaled_and_read_by_the_names_of_its_variables(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def counts() -> list[tuple[str, int]]:
        grouped = pillarbox.group_by(source(session, folder), "k")
        rows = run(grouped.transformWithState(Count(), OUTPUT, "append", "EventTime"), checkpoint)
        return [(k, n) for k, n, _ in rows]

    write(folder, 1, ("a", "00:00:00"), ("b", "00:00:01"), ("a", "00:00:02"))
    assert counts() == [("a", 2), ("b", 1)]
    state = pillarbox.read_state(session, str(checkpoint), "transformWithState")
    rows = {
        row.key: (row.n, row.times, row.by_second, [timer.timestamp for timer in row.timers])
        for row in state.select("key", F.col("count.n").alias("n"), "times", "by_second", "timers").collect()
    }
    assert rows["b"][0] == 1
    assert [row.t.second for row in rows["a"][1]] == [0, 2]
    assert rows["a"][2] == {Row(second=0): Row(n=1), Row(second=2): Row(n=2)}
    assert rows["a"][3] == [1_704_067_260_000, 1_704_067_262_000]
    assert pillarbox.rescale(session, str(checkpoint), 3)
    write(folder, 2, ("a", "00:02:00"))
    # The watermark moves after the last micro-batch, and fires b's timer in one without data.
    assert counts() == [("a", 3), ("b", -1)]
    # Late rows are at or before the watermark of the previous micro-batch.
    write(folder, 3, ("b", "00:02:00"), ("b", "00:02:01"))
    assert counts() == [("b", 2)]


@pytest.mark.slow("two short queries")
def test_a_query_starts_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    write(tmp_path / "in", 1, ("a", "00:00:00"), ("b", "00:00:01"), ("a", "00:00:02"))
    counts = pillarbox.group_by(source(session, tmp_path / "in"), "k")
    run(counts.transformWithState(Count(), OUTPUT, "append", "EventTime"), tmp_path / "before")
    pillarbox.savepoint(session, str(tmp_path / "before"), str(tmp_path / "savepoint"))
    # The watermark is at second 2: the first row is late.
    write(tmp_path / "in", 2, ("a", "00:00:02"), ("a", "00:02:00"))
    env = StreamExecutionEnvironment.get_execution_environment(session).from_savepoint(str(tmp_path / "savepoint"))
    counts = pillarbox.group_by(source(session, tmp_path / "in"), "k", env=env.set_parallelism(3))
    rows = run(counts.transformWithState(Count(), OUTPUT, "append", "EventTime"), tmp_path / "after")
    # The timer of b was in the savepoint, and fires when the watermark has passed it.
    assert [(k, n) for k, n, _ in rows] == [("a", 3), ("b", -1)]


@pytest.mark.slow("a short query")
def test_operators_after_it_have_spark_s_watermark(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    write(tmp_path / "in", 1, ("a", "00:00:00"), ("b", "00:00:01"), ("a", "00:01:02"))
    grouped = pillarbox.group_by(source(session, tmp_path / "in"), "k")
    counts = grouped.transformWithState(Count(), OUTPUT, "append", "EventTime", eventTimeColumnName="t")
    windows = counts.groupBy(F.window("t", "1 minute")).agg(F.count("*").alias("rows"), F.sum("n").alias("n"))
    write(tmp_path / "in", 2, ("c", "00:03:00"))
    rows = run(windows.select(F.minute("window.start"), "rows", "n"), tmp_path / "checkpoint")
    # Minute 0: b. Minute 1: a, and the timers of a and b. Minute 2: a's second timer. Minute 3 is not over.
    assert rows == [(0, 1, 1), (1, 3, -1), (2, 1, -2)]


@pytest.mark.slow("five short queries")
def test_a_batch_dataframe_has_no_watermark_and_no_timers(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'a' AS k, TIMESTAMP'2024-01-01 00:00:00Z' AS t")
    for key in ("k", "K", df.k, ["k"], 1):
        counts = pillarbox.group_by(df, key).transformWithState(Count(), OUTPUT, "append", "EventTime")
        assert [row.n for row in counts.collect()] == [1]


class Starts(Count):
    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.first,))


def test_an_initial_state(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'a' AS k, TIMESTAMP'2024-01-01 00:00:00Z' AS t")
    first = pillarbox.group_by(spark.sql("SELECT * FROM VALUES ('a', 10), ('b', 20) AS (name, first)"), "name")
    counts = pillarbox.group_by(df, "k").transformWithState(Starts(), OUTPUT, "append", "EventTime", first)
    assert [(row.k, row.n) for row in counts.collect()] == [("a", 11)]


@pytest.mark.slow("a short query")
def test_an_error_names_the_key_and_is_the_user_s(spark: SparkSession, tmp_path: Path, one_attempt: None) -> None:
    write(tmp_path / "in", 1, ("a", "00:00:00"), ("wrong", "00:00:01"))
    counts = pillarbox.group_by(source(spark, tmp_path / "in"), "k").transformWithState(
        Count(), OUTPUT, "append", "EventTime"
    )
    with pytest.raises(Exception, match="failed with the key 'wrong': ValueError: a wrong row"):
        run(counts, tmp_path / "checkpoint")


class TwoStates(Count):
    def init(self, handle):
        handle.getValueState("count", "n LONG")
        handle.getValueState("count", "n LONG")


class Mortal(Count):
    def init(self, handle):
        handle.getValueState("count", "n LONG", 1000)


class Unparsed(Count):
    def init(self, handle):
        handle.getValueState("count", "n NOTHING")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((TwoStates(), OUTPUT, "append", "None"), PySparkRuntimeError, "Value state count already exists"),
        ((Mortal(), OUTPUT, "append", "None"), PySparkRuntimeError, "INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        (
            (Unparsed(), OUTPUT, "append", "None"),
            PySparkRuntimeError,
            r"Error parsing string schema: \n\[UNSUPPORTED_DATATYPE",
        ),
        ((Count(), "n NOTHING", "append", "None"), ParseException, "UNSUPPORTED_DATATYPE"),
        ((Count(), OUTPUT, "append", "Never"), IllegalArgumentException, "STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"),
        ((Count(), OUTPUT, "sometimes", "None"), IllegalArgumentException, "STREAMING_OUTPUT_MODE.INVALID"),
    ],
)
def test_wrong_arguments_are_spark_s_errors(spark: SparkSession, arguments: Any, error: Any, message: str) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS k", "timestamp AS t")
    with pytest.raises(error, match=message):
        pillarbox.group_by(stream, "k").transformWithState(*arguments)


class Framed(StatefulProcessor):
    """Emits the lengths of the pandas frames with a key's rows, the first row's time, and a midnight."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        frames = list(rows)
        text = f"{[len(frame) for frame in frames]} {frames[0].t[0]}"
        yield pd.DataFrame({"said": [text], "t": [datetime(2024, 1, 1)]})


class Halves(Framed):
    def handleInputRows(self, key, rows, timerValues):
        yield pd.DataFrame({"n": [1.5]})


@pytest.fixture
def driver_in_new_york(spark: SparkSession) -> Iterator[SparkSession]:
    zones: Any = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    session = spark.newSession()
    session.conf.unset("spark.sql.session.timeZone")
    yield session
    zones.setDefault(before)


@pytest.mark.slow("two queries on Spark and on pillarbox")
@pytest.mark.parametrize("group_by", [DataFrame.groupBy, pillarbox.group_by], ids=["spark", "pillarbox"])
def test_frames_follow_spark_s_settings_and_their_defaults(
    driver_in_new_york: SparkSession, group_by: Callable[..., Any]
) -> None:
    session = driver_in_new_york
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "2k")
    df = session.sql("SELECT 'a' AS k, TIMESTAMP'2024-01-01 12:00:00' AS t, repeat('x', 900) AS s FROM range(4)")
    rows = group_by(df, "k").transformWithStateInPandas(Framed(), "said STRING, t TIMESTAMP", "append", "None")
    assert rows.selectExpr("said", "STRING(t)").collect() == [("[3, 1] 2024-01-01 12:00:00", "2024-01-01 00:00:00")]
    halves = group_by(df, "k").transformWithStateInPandas(Halves(), "n INT", "append", "None")
    with pytest.raises(Exception, match="Failed to convert the value of the column 'n' with type 'float64'"):
        halves.collect()


def test_naive_times_are_in_the_driver_s_time_zone_by_default(driver_in_new_york: SparkSession) -> None:
    df = driver_in_new_york.sql("SELECT TIMESTAMP_NTZ'2024-01-01 12:00:00' AS at")
    rows = StreamExecutionEnvironment.get_execution_environment(driver_in_new_york).from_dataframe(df)
    times = rows.map(lambda row: (row.at,)).to_dataframe("at TIMESTAMP")
    assert times.selectExpr("STRING(at)").collect() == [("2024-01-01 12:00:00",)]


def test_refused_programs(spark: SparkSession) -> None:
    df = spark.range(1)
    with pytest.raises(ProgramError, match="takes at least one column of the DataFrame, not none"):
        pillarbox.group_by(df)
    # Selected, these expressions have the names of columns.
    named = spark.sql("SELECT '1' AS k, 2 AS x, named_struct('x', 3) AS point")
    expressions: dict[str, Any] = {
        r"%\(x, 2\)": F.col("x") % 2,
        r"CAST\(k AS INT\)": F.col("k").cast("int"),
        r"upper\(k\) AS k": F.upper("k").alias("k"),
        "point.x": "point.x",
        "4": 4,
        "0": 0,
        "True": True,
    }
    for shown, expression in expressions.items():
        with pytest.raises(ProgramError, match=f"not '{shown}': make an expression a column"):
            pillarbox.group_by(named, expression)
    with pytest.raises(ProgramError, match="a Spark DataFrame, not 5"):
        pillarbox.group_by(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"initialState must be a DataFrame grouped by pillarbox.group_by\(\)"):
        grouped: Any = df.groupBy("id")
        pillarbox.group_by(df, "id").transformWithState(Count(), OUTPUT, "append", "None", grouped)
    with pytest.raises(ProgramError, match="initialState is grouped by 'id', whose types are not those of 'k'"):
        other = pillarbox.group_by(df, "id")
        pillarbox.group_by(df.selectExpr("STRING(id) k"), "k").transformWithState(
            Count(), OUTPUT, "append", "None", other
        )
    with pytest.raises(ProgramError, match="has the type void, which pillarbox cannot store"):
        pillarbox.group_by(spark.sql("SELECT NULL AS k"), "k").transformWithState(Count(), OUTPUT, "append", "None")
    with pytest.raises(ProgramError, match="is string collate UTF8_LCASE, but keys are compared without a"):
        collated = spark.sql("SELECT 'A' COLLATE UTF8_LCASE AS k")
        pillarbox.group_by(collated, "k").transformWithState(Count(), OUTPUT, "append", "None")
    with pytest.raises(UnsupportedOperationException, match="is unsupported in batch query"):
        pillarbox.group_by(df, "id").applyInPandasWithState(len, "n INT", "n INT", "append", "NoTimeout")
    with pytest.raises(ProgramError, match="timeoutConf= must be one of 'NoTimeout'"):
        pillarbox.group_by(df, "id").applyInPandasWithState(len, "n INT", "n INT", "append", "Never")
