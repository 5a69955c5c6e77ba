"""A program runs in the user's session with Spark's defaults, and does not change the session."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from pillarbox import (
    KeyedProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    group_by,
    metrics,
)
from pillarbox._runtime.spark.plan import registry
from pillarbox._runtime.spark.plan.registry import check_uids, programs_of
from pillarbox._runtime.spark.session.spark_names import SHUFFLE_CHECKSUMS, SHUFFLE_RETRY

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield ctx.get_current_key(), self.seen.value()


@pytest.fixture
def user(spark):
    """A session with Spark's defaults: 200 shuffle partitions and the HDFS state store."""
    session = spark.newSession()
    for name in [*(name for name in session.conf.getAll if "streaming" in name), "spark.sql.shuffle.partitions"]:
        session.conf.unset(name)
    assert session.conf.get("spark.sql.shuffle.partitions") == "200"
    return session


def counts(df, parallelism=2, most=None, uid="count"):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_max_parallelism(most or parallelism)
    return env.from_dataframe(df).key_by("key").process(Count()).uid(uid).to_dataframe("key LONG, n LONG")


def numbers(session, rows=100):
    return session.range(rows).select((F.col("id") % 7).alias("key"))


@pytest.fixture
def files(user, tmp_path):
    folder = tmp_path / "numbers"
    numbers(user).repartition(2).write.parquet(str(folder))
    return user.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(folder))


def started_with(checkpoint: Path) -> tuple[str, str]:
    conf = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[1])["conf"]
    return conf["spark.sql.shuffle.partitions"], conf[_PROVIDER]


def to_the_end(writer, checkpoint: Path):
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def finals(rows) -> dict[int, int]:
    last: Counter[int] = Counter()
    for row in rows:
        last[row.key] = max(last[row.key], row.n)
    return dict(last)


EXPECTED = dict(Counter(i % 7 for i in range(100)))


def test_a_batch_result_belongs_to_the_session(user):
    settings = dict(user.conf.getAll)
    user.udf.register("twice", lambda n: 2 * n, "long")
    result = counts(numbers(user), 3)
    result.createOrReplaceTempView("counts")
    twice = user.sql("SELECT key, twice(max(n)) AS n FROM counts GROUP BY key").collect()
    assert {row.key: row.n for row in twice} == {key: 2 * n for key, n in EXPECTED.items()}
    assert finals(user.sql("SELECT * FROM {r}", r=result).collect()) == EXPECTED
    assert result.selectExpr("twice(n) AS m").agg(F.max("m")).first()[0] == 2 * max(EXPECTED.values())
    user.sql("CREATE DATABASE IF NOT EXISTS mine")
    user.sql("USE mine")
    try:
        result.write.mode("overwrite").saveAsTable("counted")
        assert finals(user.table("mine.counted").collect()) == EXPECTED
    finally:
        user.sql("DROP DATABASE mine CASCADE")
    assert dict(user.conf.getAll) == settings


def test_a_batch_needs_no_state_store_and_keeps_its_parallelism(user):
    result = counts(numbers(user), 5, most=128)
    streaming = counts(user.readStream.format("rate").load().selectExpr("value AS key", "timestamp AS at"), 5)
    plans = [str(df._jdf.queryExecution()) for df in (result, streaming)]
    assert ["TransformWithState" in plan for plan in plans] == [False, True]
    assert "StateStore" not in plans[0]
    # Requested partitions are not merged, and each subtask has its own.
    assert result.select(F.spark_partition_id().alias("p")).agg(F.count_distinct("p")).first()[0] == 5
    assert result.rdd.getNumPartitions() == 5


def test_a_memory_sink_and_the_sessions_streams_know_the_query(user, files, tmp_path):
    settings = dict(user.conf.getAll)
    counts(files).createOrReplaceTempView("counts")
    query = (
        user.sql("SELECT key, n FROM counts WHERE n > 0")
        .writeStream.format("memory")
        .queryName("counted")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert dict(user.conf.getAll) == settings
        assert [active.id for active in user.streams.active] == [query.id]
        query.processAllAvailable()
        assert finals(user.sql("SELECT * FROM counted").collect()) == EXPECTED
    finally:
        query.stop()
    assert user.streams.awaitAnyTermination(300)
    assert started_with(tmp_path / "checkpoint") == ("2", _ROCKSDB)


@pytest.mark.long("test_dashboard.py follows a query")
def test_a_listener_of_the_session_hears_of_a_query_that_writes_a_table(user, files, tmp_path):
    heard: dict[str, threading.Event] = {name: threading.Event() for name in ("started", "progress", "terminated")}

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event):
            heard["started"].set()

        def onQueryProgress(self, event):
            heard["progress"].set()

        def onQueryTerminated(self, event):
            heard["terminated"].set()

    listener = Listener()
    user.streams.addListener(listener)
    try:
        writer = counts(files, 3).writeStream.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("counted_table")
        query.awaitTermination()
        assert all(event.wait(300) for event in heard.values())
        assert finals(user.table("counted_table").collect()) == EXPECTED
    finally:
        user.streams.removeListener(listener)
        user.sql("DROP TABLE IF EXISTS counted_table")
    assert started_with(tmp_path / "checkpoint") == ("3", _ROCKSDB)


@pytest.mark.parametrize(
    ("trigger", "mode", "refused"),
    [
        ({"continuous": "1 second"}, "append", "Continuous processing does not support"),
        ({"realTime": "5 seconds"}, "append", "REAL_TIME_MODE"),
        ({"availableNow": True}, "complete", "UNSUPPORTED_OPERATION"),
    ],
)
def test_triggers_and_modes_refused_by_spark_are_refused_at_the_start(user, files, tmp_path, trigger, mode, refused):
    writer = counts(files).writeStream.format("noop").outputMode(mode).trigger(**trigger)
    with pytest.raises(Exception, match=refused):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()
    assert not list((tmp_path / "checkpoint").glob("commits/*"))


def minutes(df):
    return df.select("*", F.timestamp_millis(F.col("key") * 60_000).alias("at")).withWatermark("at", "1 minute")


@pytest.mark.long("two stateful operators of Spark; operating/test_changes.py has steps of Spark around a program")
def test_spark_s_own_state_before_a_program(user, files, tmp_path):
    windows = minutes(files).groupBy(F.window("at", "1 minute"), "key").count()
    writer = counts(windows.select("key")).writeStream.format("memory").queryName("before_a_program")
    to_the_end(writer, tmp_path / "checkpoint")
    # Spark emits a window when the watermark has passed its end: not for the last two minutes.
    assert finals(user.table("before_a_program").collect()) == dict.fromkeys(range(5), 1)


@pytest.mark.long("as the test before")
def test_spark_s_own_state_behind_a_program(user, files, tmp_path):
    windows = minutes(counts(files)).groupBy(F.window("at", "1 minute"), "key").agg(F.count("n").alias("n"))
    writer = windows.writeStream.format("memory").queryName("behind_a_program").outputMode("update")
    to_the_end(writer, tmp_path / "checkpoint")
    rows = finals(user.table("behind_a_program").collect())
    # Rows of past minutes in the second file are late for Spark.
    assert rows.keys() == EXPECTED.keys() and all(rows[key] == EXPECTED[key] for key in (5, 6))


def test_each_query_starts_with_its_own_settings(user, files, tmp_path):
    user.conf.set("spark.sql.shuffle.partitions", "6")
    user.conf.set(_PROVIDER, _HDFS)
    user.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "1000000")
    settings = dict(user.conf.getAll)

    two, four = counts(files, 2), counts(files, 4)
    to_the_end(four.writeStream.format("noop"), tmp_path / "four")
    with pytest.raises(Exception, match="nowhere"):
        two.writeStream.format("nowhere").start()
    own = files.groupBy("key").count().writeStream.outputMode("complete").format("noop")
    to_the_end(own, tmp_path / "own")
    assert dict(user.conf.getAll) == settings
    assert started_with(tmp_path / "four") == ("4", _ROCKSDB)
    assert started_with(tmp_path / "own") == ("6", _HDFS)


def test_programs_of_a_plan_are_found_behind_views_and_unions(user, files):
    left, right = counts(files, 2), counts(files, 2, uid="right")
    left.createOrReplaceTempView("lefts")
    both = user.sql("SELECT key FROM lefts").unionAll(right.select("key"))
    result = programs_of(both)
    assert [program.parallelism for program in result] == [2, 2]
    assert len({program.id for program in result}) == 2
    assert all(program.summary.begins is None for program in result)
    assert programs_of(files.groupBy("key").count()) == []
    assert programs_of(left.writeStream) == programs_of(left)
    frame = counts(files, 2)
    registry._newest.clear()
    with pytest.raises(
        ProgramError,
        match="the query's program was planned by another process, or too long ago: call to_dataframe",
    ):
        programs_of(frame)
    assert programs_of(both) == result, "of programs that are in use none is forgotten"
    other = counts(files, 3, uid="other").select("key")
    with pytest.raises(ProgramError, match="the query contains programs of parallelism 2 and 3, but"):
        both.unionAll(other).writeStream.format("noop").start()


def test_different_operators_of_a_query_have_different_uids(user, files):
    with pytest.raises(ProgramError, match="two programs of the query have an operator 'count', so a later start"):
        counts(files).unionAll(counts(files)).writeStream.format("noop").start()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    counted = env.from_dataframe(files).key_by("key").process(Count()).uid("count")
    left, right = counted.to_dataframe("key LONG, n LONG"), counted.filter(bool).to_dataframe("key LONG, n LONG")
    check_uids(programs_of(left.unionAll(right)))  # both have the same operator
    grouped = [
        group_by(files, "key").applyInPandasWithState(lambda *_: [], "key LONG", "n LONG", "append", "NoTimeout")
        for _ in range(2)
    ]
    check_uids(programs_of(grouped[0].unionAll(grouped[1])))  # Spark, too, identifies them by their order


def test_the_name_of_a_program_is_found_in_a_plan_whose_text_is_cut(user, files):
    user.conf.set("spark.sql.maxPlanStringLength", "0")
    assert len(programs_of(counts(files))) == 1


def test_a_collection_becomes_a_dataframe(user):
    env = StreamExecutionEnvironment.get_execution_environment(user)
    numbers = env.from_collection([3, 1, 2])
    assert sorted(map(tuple, numbers.map(lambda n: (n, n / 2)).to_dataframe("id LONG, half DOUBLE").collect())) == [
        (1, 0.5),
        (2, 1.0),
        (3, 1.5),
    ]
    keyed = numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b)
    assert sorted(row.n for row in keyed.to_dataframe("n LONG").collect()) == [2, 3, 4]
    with pytest.raises(ProgramError, match=r"to_dataframe\(\) needs a Spark session, but the program reads"):
        StreamExecutionEnvironment().from_collection([1]).to_dataframe("id LONG")


@pytest.mark.long("spark/test_dashboard.py has two programs in a query, too")
def test_metrics_of_two_programs_in_one_query(user, files, tmp_path):
    both = counts(files, uid="left").unionAll(counts(files, uid="right"))
    query = to_the_end(both.writeStream.format("noop"), tmp_path / "both")
    for progress in (query.lastProgress, json.loads(query.lastProgress.json)):
        tasks = metrics(progress)
        assert Counter(task.uid for task in tasks)["left"] == 2  # one program of two subtasks
        assert all(isinstance(task.records_in, int) and isinstance(task.counters, dict) for task in tasks)
    every = [task for progress in query.recentProgress for task in metrics(progress)]
    assert sum(task.records_in for task in every if task.uid in ("left", "right")) == 200
    alone = counts(files).writeStream.format("noop")
    query = alone.option("checkpointLocation", str(tmp_path / "alone")).trigger(once=True).start()
    query.awaitTermination()
    assert {task.program for task in metrics(query.lastProgress)} == {"pillarbox"}, "whatever was started before"
    assert metrics(None) == []


def test_names_with_dots_and_backticks(user, files, tmp_path):
    odd = numbers(user).select(F.col("key").alias("the.key"), F.col("key").alias("a`b"))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(2)
    by_key = env.from_dataframe(odd).key_by("the.key").reduce(lambda a, b: b)
    result = by_key.to_dataframe(odd.schema)
    assert result.columns == ["the.key", "a`b"]
    assert {tuple(row) for row in result.collect()} == {(key, key) for key in range(7)}

    read: dict[str, list[tuple[int, int]]] = {}
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(2)
    rows = env.from_dataframe(files.toDF("a.b")).map(lambda row: (row["a.b"], row["a.b"]))
    columns = "__pillarbox_report LONG, `x.y` LONG"

    def write(frames, number):
        for name, frame in frames.items():
            assert frame.columns == ["__pillarbox_report", "x.y"]
            read.setdefault(name, []).extend(map(tuple, frame.collect()))

    outputs = {"an.output": (rows, columns), "a `quoted` one": (rows, columns), "__pillarbox_report": (rows, columns)}
    to_the_end(env.for_each_batch(write, outputs), tmp_path / "several")
    expected = sorted((i % 7, i % 7) for i in range(100))
    assert {name: sorted(result) for name, result in read.items()} == dict.fromkeys(outputs, expected)
    read.clear()
    to_the_end(env.for_each_batch(write, {"one.output": (rows, columns)}), tmp_path / "one")
    assert sorted(read["one.output"]) == expected


def test_doubled_names_are_refused(user):
    env = StreamExecutionEnvironment.get_execution_environment(user)
    with pytest.raises(ProgramError, match=r"from_dataframe\(\): 2 columns have the name 'key'"):
        env.from_dataframe(numbers(user).select("key", "key"))
    with pytest.raises(ProgramError, match="output 'output': 2 columns have the name 'id'"):
        env.from_dataframe(numbers(user)).map(lambda row: (1, 2.0)).to_dataframe("id LONG, id DOUBLE")


def test_a_function_may_leave_a_batch_unread(user, files, tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(2)
    stream = env.from_dataframe(files).key_by("key").process(Count()).uid("count")
    seen = []

    def write(frames, number):
        if number:
            seen.extend(frames["counts"].collect())

    to_the_end(env.for_each_batch(write, {"counts": (stream, "key LONG, n LONG")}), tmp_path / "checkpoint")
    assert 0 < len(seen) < 100
    assert finals(seen) == EXPECTED


def test_spark_compares_the_output_of_tasks_that_run_again(user, files, tmp_path):
    """Spark 4.1 needs a setting for this comparison. Without the comparison, records would be lost."""
    user.conf.set(SHUFFLE_CHECKSUMS, "false")
    user.conf.set(SHUFFLE_RETRY, "false")
    seen = []
    writer = counts(files).writeStream
    writer = writer.foreachBatch(lambda batch, number: seen.append((batch.count(), batch.sparkSession.conf.getAll)))
    to_the_end(writer, tmp_path / "checkpoint")
    assert [(settings[SHUFFLE_CHECKSUMS], settings[SHUFFLE_RETRY]) for _, settings in seen] == [("true", "true")] * 2


def test_naive_datetimes_are_in_the_time_zone_of_the_programs_session(spark, user):
    user.conf.set("spark.sql.session.timeZone", "America/New_York")
    assert spark.conf.get("spark.sql.session.timeZone") != "America/New_York"
    noon = datetime(2024, 7, 1, 12)
    env = StreamExecutionEnvironment.get_execution_environment()
    at = env.from_dataframe(user.range(1)).map(lambda row: (noon,)).to_dataframe("at TIMESTAMP")
    seconds = at.selectExpr("unix_timestamp(at)").collect()[0][0]
    assert seconds == datetime(2024, 7, 1, 16, tzinfo=timezone.utc).timestamp()


def test_a_source_without_partitions_has_nothing_to_say(user):
    env = StreamExecutionEnvironment.get_execution_environment(user).set_parallelism(2).set_max_parallelism(2)
    empty = user.createDataFrame(user.sparkContext.emptyRDD(), "key LONG").where("key IS NULL")
    first = env.from_dataframe(empty).key_by("key").process(Count())
    second = env.from_dataframe(numbers(user)).key_by("key").process(Count())
    total = first.union(second).key_by(lambda pair: pair[0]).reduce(max)
    assert finals(total.to_dataframe("key LONG, n LONG").collect()) == EXPECTED


def test_functions_may_use_broadcast_variables(user, files, tmp_path):
    names = user.sparkContext.broadcast({key: f"key {key}" for key in range(7)})

    class Named(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.get_current_key(), f"{names.value[ctx.get_current_key()]}, {value}"

    def named(df):
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        first = env.from_dataframe(df).map(lambda row: (row.key, names.value[row.key]))
        second = first.key_by(lambda pair: pair[0]).map(lambda pair: (pair[0], f"{names.value[pair[0]]}, {pair[1]}"))
        return second.key_by(lambda pair: pair[0]).process(Named(), output_type="key LONG, said STRING").to_dataframe()

    expected = {key: f"key {key}, ({key}, 'key {key}, key {key}')" for key in range(7)}
    assert {row.key: row.said for row in named(numbers(user)).collect()} == expected
    to_the_end(named(files).writeStream.format("memory").queryName("named"), tmp_path / "checkpoint")
    assert {row.key: row.said for row in user.table("named").collect()} == expected
