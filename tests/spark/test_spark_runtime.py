"""The Spark runtime: sources, levels, outputs, settings, and metrics."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from pillarbox import (
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
    metrics,
)
from pillarbox._graph.targets import spark_hash, subtask_codes
from tests.spark.streams import stream_of


class CountPerKey(KeyedProcessFunction):
    """Counts records per key. At each minute's end, a timer emits (key, end of the minute, count so far)."""

    def open(self, runtime_context):
        # With the type of the key column, all types are known: the state is plain.
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer((ctx.timestamp() // 60_000 + 1) * 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.seen.value()


class SumOfCounts(KeyedProcessFunction):
    def open(self, runtime_context):
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts"))

    def process_element(self, value, ctx):
        self.counts.put(value[0], value[2])
        yield ctx.get_current_key(), sum(self.counts.values())


def environment(spark, parallelism=2):
    return (
        StreamExecutionEnvironment.get_execution_environment(spark)
        .set_parallelism(parallelism)
        .set_max_parallelism(parallelism)
    )


def events(spark, count=1000, keys=17):
    return spark.range(count).select(
        (F.col("id") % keys).alias("key"), (F.col("id") * 500).alias("at"), F.concat(F.lit("v"), "id").alias("name")
    )


BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def run(df, folder: Path, look=lambda: None):
    rows = []

    def take(batch, number):
        rows.extend(batch.collect())
        look()

    query = (
        df.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return rows, query


def test_codes_put_subtasks_into_partitions_of_their_own(spark):
    hashed = spark.range(-50, 2000).select("id", F.hash("id")).collect()
    assert all(spark_hash(value) == result for value, result in hashed)
    for own in [subtask_codes(vertex, 7) for vertex in range(3)]:
        rows = spark.createDataFrame([(code,) for code in own], "id long").select(F.expr("pmod(hash(id), 7)")).collect()
        assert {row[0] for row in rows} == set(range(7))


def test_several_outputs_of_a_streaming_program_in_one_query(spark, tmp_path):
    tag = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            if value.key % 2:
                ctx.output(tag, value.name)
            else:
                yield value.key

    env = environment(spark)
    rows = env.from_dataframe(stream_of(spark, events(spark, 100), tmp_path / "in", 2))
    split = rows.process(Split())
    even = split.key_by(lambda key: key).reduce(max).map(lambda key: key, "key LONG")
    seen: dict[str, list[Any]] = {"even": [], "odd": []}

    def write(frames, batch_id):
        for name, frame in frames.items():
            seen[name] += [tuple(row) for row in frame.collect()]

    writer = env.for_each_batch(write, {"even": even, "odd": (split.get_side_output(tag), "name STRING")})
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert Counter(key for (key,) in seen["even"]) == Counter(i % 17 for i in range(100) if i % 17 % 2 == 0)
    assert sorted(seen["odd"]) == sorted((f"v{i}",) for i in range(100) if i % 17 % 2)
    assert metrics(query.recentProgress[0])


def test_an_error_of_a_function_for_each_batch_says_where_and_shows_the_users_frames(spark, tmp_path):
    env = environment(spark)
    rows = env.from_dataframe(stream_of(spark, events(spark, 10), tmp_path / "in", 1)).map(
        lambda row: row.key, "key LONG"
    )

    def write(frames, batch_id):
        raise LookupError("no such table")

    query = env.for_each_batch(write, {"keys": rows}).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert (
        "OperatorError: for_each_batch(): write() failed at batch 0 of the outputs 'keys': LookupError: no such" in text
    )
    # The cause is first, with only the function's frames.
    cause, _, _ = text.partition("The above exception was the direct cause")
    assert cause.count('File "') == 1 and "in write" in cause and "LookupError: no such table" in cause


def test_batch_program_ends_with_the_maximum_watermark(spark):
    stream = environment(spark).from_dataframe(events(spark)).assign_timestamps_and_watermarks(BY_AT)
    out = stream.key_by("key").process(CountPerKey()).to_dataframe("key LONG, at LONG, n LONG")
    counts: Counter[int] = Counter()
    for row in out.collect():
        counts[row.key] = max(counts[row.key], row.n)
    assert counts == Counter(i % 17 for i in range(1000))


def test_streaming_with_two_levels_equals_batch_and_keeps_state_over_epochs(spark, tmp_path):
    """Spark must not compile new code in each epoch, so its code must not contain, for example, the epoch's time."""
    # All Spark code counts, including jobs that close the functions of ended queries.
    for thread in threading.enumerate():
        if thread.name.startswith("pillarbox query "):
            thread.join(300)
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    so_far: list[int] = []

    def program(df):
        stream = environment(spark).from_dataframe(df).assign_timestamps_and_watermarks(BY_AT)
        counts = stream.key_by("key").process(CountPerKey()).uid("counts")
        sums = counts.key_by(lambda value: value[0] % 2).process(SumOfCounts()).uid("sums")
        return sums.to_dataframe("group LONG, total LONG")

    # The end of a stream: a last file with an event far ahead, so that all timers before it fire.
    data = events(spark).union(spark.createDataFrame([(0, 10**9, "end")], "key long, at long, name string"))
    rows, query = run(
        program(stream_of(spark, data, tmp_path / "in", 5)),
        tmp_path / "checkpoint",
        lambda: so_far.append(compiled.getCount()),
    )
    assert len(so_far) >= 5 and len(set(so_far[2:])) == 1
    last = {row.group: row.total for row in rows}
    keys = [i % 17 for i in range(1000)] + [0]  # the end's event counts as well
    assert last == {0: sum(key % 2 == 0 for key in keys), 1: sum(key % 2 for key in keys)}
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert len(progress) >= 4
    assert {report.uid for report in metrics(progress[-1])} >= {"counts", "sums"}
    every = [report for p in progress for report in metrics(p)]
    assert sum(report.records_in for report in every if report.uid == "counts") == 1001
    assert sum(report.records_in for report in every if report.level == 0) == 1001
    # Started again, with one more event.
    more = spark.createDataFrame([(0, 10**9 + 120_000, "more")], data.schema)
    more.write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(data.schema).parquet(str(tmp_path / "in"))
    rows, _ = run(program(stream), tmp_path / "checkpoint")
    assert [(row.group, row.total) for row in rows] == [(0, last[0] + 1)]


def test_a_program_without_shuffle_is_one_pass(spark):
    tag = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            if value.key % 2:
                yield tag, value.name
            else:
                yield value.key, value["name"]

    env = environment(spark)
    split = env.from_dataframe(events(spark)).process(Split())
    out = split.to_dataframe("key LONG, name STRING")
    keyed = env.from_dataframe(events(spark)).key_by("key").process(Pass()).to_dataframe("key LONG, name STRING")
    plans = [str(df._jdf.queryExecution()) for df in (out, keyed)]
    assert ["Exchange" in plan for plan in plans] == [False, True]
    assert {row.key % 2 for row in out.collect()} == {0}
    odd = split.get_side_output(tag).map(lambda name: (name,)).to_dataframe("name STRING")
    assert odd.count() == sum((i % 17) % 2 for i in range(1000))


def test_union_of_sources_and_many_types(spark):
    @dataclasses.dataclass
    class Out:
        key: int
        tags: list[str]
        extra: dict[str, float]

    env = environment(spark, 3)
    left = env.from_dataframe(events(spark, 50), name="left").map(lambda row: (row.key, row.name))
    right = env.from_dataframe(events(spark, 70), name="right").map(lambda row: (row.key, row.name))
    merged = left.union(right).key_by(lambda value: value[0]).reduce(lambda a, b: (a[0], a[1] + "," + b[1]))
    out = merged.map(lambda value: Out(value[0], value[1].split(","), {"n": float(len(value[1]))})).to_dataframe(Out)
    longest: Counter[int] = Counter()
    for row in out.collect():
        longest[row.key] = max(longest[row.key], len(row.tags))
    assert longest == Counter(i % 17 for n in (50, 70) for i in range(n))
    assert dict(out.dtypes) == {"key": "bigint", "tags": "array<string>", "extra": "map<string,double>"}


def test_execute_and_collect_gives_python_objects(spark):
    env = environment(spark)
    results = env.from_dataframe(events(spark, 10)).map(lambda row: {row.name: row.key}).execute_and_collect()
    assert sorted(results, key=str) == sorted(({f"v{i}": i} for i in range(10)), key=str)


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield window.start, len(list(inputs))


class HiddenAlarm(KeyedProcessFunction):
    """Sets processing-time timers in a way that pillarbox's search of the code does not detect."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        method = "_".join(["register", "processing", "time", "timer"])
        getattr(timers, method)(timers.current_processing_time() + 100)


@pytest.mark.usefixtures("one_attempt")
def test_timers_that_would_never_fire_are_refused_in_a_streaming_query_only(spark, tmp_path):
    stream = stream_of(spark, events(spark, 5, keys=5), tmp_path / "in", 1)
    out = environment(spark).from_dataframe(stream).key_by("key").process(HiddenAlarm())
    with pytest.raises(StreamingQueryException, match=r"pass process\(\.\.\., processing_time=True\)"):
        run(out.to_dataframe("key LONG"), tmp_path / "checkpoint")
    batch = environment(spark).from_dataframe(events(spark, 5, keys=5)).key_by("key").process(HiddenAlarm())
    assert batch.to_dataframe("key LONG").collect() == []


def test_streaming_cannot_be_collected_and_says_so(spark, tmp_path):
    stream = stream_of(spark, events(spark, 5), tmp_path / "in", 1)
    with pytest.raises(ProgramError, match="never ends: run it with to_dataframe"):
        environment(spark).from_dataframe(stream).map(lambda row: row).execute_and_collect()


@pytest.mark.parametrize(
    ("column", "says"), [("nowhere", "no timestamp column 'nowhere'"), ("name", "'name' of 'dataframe' is string")]
)
def test_a_wrong_timestamp_column_is_refused_while_building(spark, column, says):
    stream = environment(spark).from_dataframe(events(spark))
    with pytest.raises(ProgramError, match=says):
        stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(column)
        )
    with pytest.raises(ProgramError, match="no column 'card' in 'dataframe'; the columns are key, at, name"):
        stream.key_by("card")
