from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

import pillarbox
import pillarbox.functions as PF
from pillarbox import (
    Budget,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    count_,
    max_,
)
from tests.errors.test_wrong_uses_on_spark import CASES, check_all, failure_of, failure_of_query, on
from tests.spark.stateful_programs.interpreter import (
    OUTPUT,
    SCHEMA,
    Interpreter,
    draw_rows,
    run_with_state,
    write_rows,
)
from tests.support.connect import RaisedInTheClient

pytestmark = pytest.mark.long("takes a server of Spark Connect: make test-connect runs it")


class CountPerMinute(KeyedProcessFunction):
    """Emits (key, end of the minute, number of records) at the end of each minute."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen"))

    def process_element(self, value, ctx):
        end = (ctx.timestamp() // 60_000 + 1) * 60_000
        self.seen.put(end, (self.seen.get(end) or 0) + 1)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.seen.get(timestamp)


async def doubled(row):
    await asyncio.sleep(0)
    return row[0], row[1], 2 * row[2]


def program(spark, df):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    by_at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    counts = env.from_dataframe(df).assign_timestamps_and_watermarks(by_at).key_by("key").process(CountPerMinute())
    return counts.map_async(doubled).to_dataframe("key LONG, at LONG, seen INT")


def events(spark):
    return spark.range(1000).select((F.col("id") % 7).alias("key"), (F.col("id") * 500).alias("at"))


def aggregated(spark):
    minutes = TumblingEventTimeWindows.of("1 minute")
    rows = PF.window_aggregate(events(spark), keys="key", time="at", window=minutes, n=count_(), last=max_("at"))
    return sorted((row.key, row.last, row.n) for row in rows.collect())


def batch(spark):
    return sorted(tuple(row) for row in program(spark, events(spark)).collect())


def streaming(spark, folder: Path):
    for part in range(2):
        one_file = events(spark).where(F.col("at").between(part * 250_000, part * 250_000 + 249_999)).coalesce(1)
        one_file.write.mode("append").parquet(str(folder / "in"))
    df = spark.readStream.schema("key LONG, at LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = (
        program(spark, df)
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [
        tuple(row) for row in spark.read.schema("key LONG, at LONG, seen INT").parquet(str(folder / "out")).collect()
    ]
    return sorted(rows), [pillarbox.metrics(progress) for progress in query.recentProgress]


def stateful_programs(spark, folder: Path):
    write_rows(draw_rows(7, 10, 4, timers=True), folder / "in")
    collected: dict[str, list[tuple[int, str, str]]] = {}
    for name, run in {
        "rows": lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "append", "EventTime"),
        "state": lambda grouped: grouped.applyInPandasWithState(
            run_with_state, OUTPUT, "n INT, s STRING", "append", "EventTimeTimeout"
        ),
    }.items():
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        results = run(pillarbox.group_by(df.withWatermark("t", "2 seconds"), "k"))
        writer = results.writeStream.format("parquet").option("path", str(folder / name))
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = spark.read.schema(OUTPUT).parquet(str(folder / name)).collect()
        collected[name] = sorted(map(tuple, rows), key=repr)  # a key is null
    return collected


class Noting(KeyedProcessFunction):
    def __init__(self, notes: str) -> None:
        self.notes = notes

    def note(self, what: str) -> None:
        with open(self.notes, "a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def open(self, runtime_context):
        self.note("open")

    def process_element(self, value, ctx):
        yield value.key, value.at

    def close(self):
        self.note("close")


def ended(spark, folder: Path, sink: str):
    events(spark).coalesce(1).write.parquet(str(folder / "in"))
    (folder / "notes").touch()
    rows = spark.readStream.schema("key LONG, at LONG").parquet(str(folder / "in"))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(4)
    noting = env.from_dataframe(rows).key_by("key").process(Noting(str(folder / "notes"))).uid("noting")
    writer = noting.to_dataframe("key LONG, at LONG").writeStream.option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    if sink == "foreachBatch":
        writer = writer.foreachBatch(lambda batch, number: batch.write.format("noop").mode("overwrite").save())
    else:
        writer = writer.format(sink)
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    noted = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return [sorted(pid for what, pid in noted if what == method) for method in ("open", "close")]


def raises(spark, text):
    raise ValueError(text)


def test_errors_in_the_client_are_raised_again(connect):
    with pytest.raises(RaisedInTheClient, match="no such thing") as raised:
        connect.run(raises, "no such thing")
    assert (raised.value.type, raised.value.message) == ("ValueError", "no such thing")


@pytest.mark.parametrize("sink", ["noop", "foreachBatch"])
def test_functions_are_closed_when_their_query_has_ended(connect, tmp_path, sink):
    opened, closed = connect.run(ended, tmp_path, sink)
    assert opened and closed == opened


def test_a_keyed_and_an_async_level_in_batch_and_streaming(connect, tmp_path):
    right = Counter((n % 7, (n * 500 // 60_000 + 1) * 60_000) for n in range(1000))
    doubled = sorted((key, end, 2 * count) for (key, end), count in right.items())
    assert connect.run(batch) == doubled
    result, metrics = connect.run(streaming, tmp_path)
    assert result == [row for row in doubled if row[1] <= 499_500]
    assert metrics and all({task.level for task in epoch} == {0, 1} for epoch in metrics)


def test_stateful_programs_of_spark(connect, spark, tmp_path):
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    expected = stateful_programs(session, tmp_path / "classic")
    assert connect.run(stateful_programs, tmp_path / "connect") == expected
    assert min(map(len, expected.values())) > 20


def test_aggregates_of_columns(connect):
    right: dict[tuple[int, int], list[int]] = {}
    for n in range(1000):
        right.setdefault((n % 7, n * 500 // 60_000), []).append(n * 500)
    assert connect.run(aggregated) == sorted((key, max(times), len(times)) for (key, _), times in right.items())


def in_the_session(spark, folder: Path):
    events(spark).where("at < 100000").coalesce(1).write.parquet(str(folder / "in"))
    df = spark.readStream.schema("key LONG, at LONG").parquet(str(folder / "in"))
    spark.conf.set("spark.sql.shuffle.partitions", "6")
    spark.conf.set("spark.sql.maxPlanStringLength", "50")  # the plan's text, which identifies a program in a view
    settings = dict(spark.conf.getAll)
    result = program(spark, df)
    result.createOrReplaceTempView("counts")
    queries = {
        "own": df.dropDuplicates(["key"]).writeStream,
        "view": spark.sql("SELECT key, seen FROM counts WHERE seen > 0").writeStream,
    }
    started = {}
    for name, writer in queries.items():
        query = writer.format("memory").queryName(name).option("checkpointLocation", str(folder / name)).start()
        active = [other.id for other in spark.streams.active]
        query.processAllAvailable()
        query.stop()
        conf = json.loads((folder / name / "offsets" / "0").read_text().splitlines()[1])["conf"]
        started[name] = (
            conf["spark.sql.shuffle.partitions"],
            conf["spark.sql.streaming.stateStore.providerClass"].rpartition(".")[2],
            active == [query.id],
        )
    rows = sorted(map(tuple, spark.sql("SELECT * FROM view").collect()))
    return dict(spark.conf.getAll) == settings, started, rows


def test_a_program_runs_in_the_users_session(connect, tmp_path):
    restored, started, result = connect.run(in_the_session, tmp_path)
    assert restored
    assert started == {
        "own": ("6", "HDFSBackedStateStoreProvider", True),
        "view": ("2", "RocksDBStateStoreProvider", True),
    }
    assert result == [(key, 2 * count) for key, count in sorted(Counter(n % 7 for n in range(120)).items())]


# -- batch: views and SQL --


def views_of_batches(spark):
    program(spark, events(spark)).createOrReplaceTempView("counts")
    program(spark, events(spark).where("key < 3")).createOrReplaceTempView("some")
    joined = spark.sql(
        "SELECT c.key, c.seen FROM counts c JOIN some s ON c.key = s.key AND c.at = s.at AND c.seen = s.seen"
    )
    total = spark.sql("SELECT sum(seen) FROM counts").first()[0]
    return sorted(map(tuple, joined.collect())), total, spark.catalog.listTables()[0].isTemporary


def test_views_of_batch_programs(connect):
    joined, total, temporary = connect.run(views_of_batches)
    right = Counter((n % 7, n * 500 // 60_000) for n in range(1000))
    assert joined == sorted((key, 2 * count) for (key, _), count in right.items() if key < 3)
    assert total == 2000 and temporary


# -- listeners --


class Hearing(StreamingQueryListener):
    """Collects events for each run, including events that arrive after the run has ended."""

    def __init__(self):
        self.records: Counter[str] = Counter()
        self._terminated: dict[str, threading.Event] = {}

    def terminated(self, run):
        return self._terminated.setdefault(str(run), threading.Event())

    def onQueryStarted(self, event):
        pass

    def onQueryProgress(self, event):
        records = sum(task.records_in for task in pillarbox.metrics(event) if task.level == 1)
        self.records[str(event.progress.runId)] += records

    def onQueryTerminated(self, event):
        self.terminated(event.runId).set()


def a_listener(spark, folder: Path):
    events(spark).coalesce(1).write.parquet(str(folder / "in"))
    df = spark.readStream.schema("key LONG, at LONG").parquet(str(folder / "in"))
    listener = Hearing()
    spark.streams.addListener(listener)
    try:
        writer = program(spark, df).writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return listener.terminated(query.runId).wait(300), listener.records[str(query.runId)]
    finally:
        spark.streams.removeListener(listener)


def test_a_listener_hears_of_a_program_and_its_metrics(connect, tmp_path):
    assert connect.run(a_listener, tmp_path) == (True, 1000)


# -- several outputs, and foreachBatch --

EVEN = OutputTag("even")


class Counts(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield ctx.get_current_key(), self.seen.value()
        if self.seen.value() % 2 == 0:
            yield EVEN, (ctx.get_current_key(), self.seen.value())


def files_of(spark, folder: Path, rows: int):
    events(spark).where(F.col("at") < rows * 500).coalesce(1).write.mode("append").parquet(str(folder / "in"))
    return spark.readStream.schema("key LONG, at LONG").parquet(str(folder / "in"))


def several_outputs(spark, folder: Path):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    counts = env.from_dataframe(files_of(spark, folder, 70)).key_by("key").process(Counts())
    out = str(folder / "out")

    def write(frames, number):
        every, even = frames["every"], frames["even"]
        every.createOrReplaceTempView("every")
        every.sparkSession.sql("SELECT key, n FROM every WHERE n = 10").write.mode("append").json(f"{out}/tens")
        even.write.mode("append").json(f"{out}/even")

    outputs = {"every": (counts, "key LONG, n LONG"), "even": (counts.get_side_output(EVEN), "key LONG, n LONG")}
    writer = env.for_each_batch(write, outputs).option("checkpointLocation", str(folder / "checkpoint"))
    query = pillarbox.start(writer.trigger(availableNow=True))
    ended = query.awaitTermination(300)
    read = {
        name: sorted(map(tuple, spark.read.schema("key LONG, n LONG").json(f"{out}/{name}").collect()))
        for name in ("tens", "even")
    }
    return ended, str(query.exception()), read


def test_for_each_batch_with_several_outputs(connect, tmp_path):
    ended, failure, result = connect.run(several_outputs, tmp_path)
    assert (ended, failure) == (True, "None")
    assert result["tens"] == [(key, 10) for key in range(7)]
    assert result["even"] == [(key, n) for key in range(7) for n in (2, 4, 6, 8, 10)]


# -- pillarbox.start --


class Alarms(Counts):
    """Sets two timers: one is due immediately and emits the key again, and one is due in an hour."""

    def process_element(self, value, ctx):
        yield from super().process_element(value, ctx)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 1)
        timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -1


def looked_after(spark, folder: Path):
    def writer(df, key):
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        alarms = env.from_dataframe(df).key_by(key).process(Alarms()).uid("alarms")
        writer = alarms.to_dataframe("key LONG, n LONG").writeStream.format("parquet").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(folder / "checkpoint"))

    ends = []
    for _ in range(2):
        query = pillarbox.start(writer(files_of(spark, folder, 14), "key"), str(folder / "out"))
        ends.append((query.awaitTermination(300), str(query.exception())))
    try:
        pillarbox.start(writer(files_of(spark, folder, 0), "at"), str(folder / "out"))
        message = ""
    except pillarbox.CheckpointMismatchError as error:
        message = str(error)
    rows = spark.read.schema("key LONG, n LONG").parquet(str(folder / "out")).collect()
    return ends, message, sorted(map(tuple, rows)), operated(spark, str(folder / "checkpoint"))


def operated(spark, checkpoint):
    from pillarbox._runtime.spark.reading.inspection import inspect_checkpoint

    state = pillarbox.read_state(spark, checkpoint, "alarms").selectExpr("key", "seen::long")
    (alarms,) = inspect_checkpoint(spark, checkpoint)["operators"]
    try:
        pillarbox.rescale(spark, checkpoint, 1)
        message = ""
    except pillarbox.ConfigurationError as error:
        message = str(error)
    return sorted(map(tuple, state.collect())), (alarms["uid"], alarms["keys"], alarms["states"]), message


def test_a_query_that_is_looked_after_and_looked_into(connect, tmp_path):
    ends, refusal, rows, (state, alarms, said_of_rescale) = connect.run(looked_after, tmp_path)
    assert ends == [(True, "None")] * 2
    assert "the key was the column key BIGINT, and is the column at BIGINT" in refusal
    assert [row for row in rows if row[1] > 0] == [(key, n) for key in range(7) for n in (1, 2, 3, 4)]
    assert {key for key, n in rows if n < 0} == set(range(7))
    assert state == [(key, 4) for key in range(7)]
    assert alarms == ("alarms", 7, {"seen": "value"})
    assert "Spark Connect cannot repartition the state of a checkpoint" in said_of_rescale
    assert (
        "call pillarbox.rescale in a classic session of Spark 4.2 or newer, or run 'pillarbox rescale'"
        in said_of_rescale
    )


# -- stopping with a savepoint --


class AtTheEnd(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(2**62)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.seen.value()


def stopped_and_drained(spark, folder: Path):
    from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

    def start(rows, **trigger):
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        counted = env.from_dataframe(files_of(spark, folder, rows)).key_by("key").process(AtTheEnd()).uid("counted")
        writer = counted.to_dataframe("key LONG, n LONG").writeStream.format("parquet").trigger(**trigger)
        return pillarbox.start(
            writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
        )

    query = start(70, processingTime="0 seconds")
    query.processAllAvailable()
    pillarbox.stop_with_savepoint(query, str(folder / "first"))
    results = [query.isActive, spark.read.schema("key LONG, n LONG").parquet(str(folder / "out")).count()]
    query = start(70, availableNow=True)
    query.awaitTermination()
    files_of(spark, folder, 7)  # so that there is input for the last epoch
    pillarbox.stop_with_savepoint(query, str(folder / "second"), drain=True, timeout=400)
    rows = spark.read.schema("key LONG, n LONG").parquet(str(folder / "out")).collect()
    opened = [open_savepoint(spark, str(folder / name)) for name in ("first", "second")]
    contents = [
        (savepoint.manifest.drained, sorted(map(tuple, savepoint.frame("counted").select("key", "seen").collect())))
        for savepoint in opened
    ]
    return results, sorted(map(tuple, rows)), contents


def test_stopped_with_a_savepoint_and_drained(connect, tmp_path):
    result, rows, contents = connect.run(stopped_and_drained, tmp_path)
    assert result == [False, 0]
    assert rows == [(key, 21) for key in range(7)]
    assert contents == [(False, [(key, 10) for key in range(7)]), (True, [(key, 21) for key in range(7)])]


@pytest.mark.parametrize("case", on("connect"))
def test_wrong_uses(connect, case):
    kind, text = connect.run(failure_of, case.name)
    assert kind == "PythonException"
    check_all(text, case)


def test_a_wrong_use_in_a_query(connect, tmp_path):
    case = CASES["keyed"]
    for text in connect.run(failure_of_query, case.name, str(tmp_path / "checkpoint")):
        check_all(text, case)


async def at(row):
    return row.id, time.time()


def limited(spark, **limits):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    rows = env.from_dataframe(spark.range(60)).key_by("id")
    limited_rows = rows.map_async(at, "id LONG, at DOUBLE", budgets=[Budget("service", requests=40, **limits)])
    return sorted(row.at for row in limited_rows.to_dataframe().collect())


def test_budgets_are_static_shares_and_ceilings_are_refused(connect):
    times = connect.run(limited)
    assert len(times) == 60
    # Two tasks at a time, each with half of the limit, and another request; some are late by 40 ms.
    assert max(bisect_left(times, first + 1) - index for index, first in enumerate(times)) <= 40 * 1.04 + 2
    with pytest.raises(RaisedInTheClient, match="budget 'service' has a ceiling, which is enforced by the process"):
        connect.run(partial(limited, ceiling=(5, "1 day")))
