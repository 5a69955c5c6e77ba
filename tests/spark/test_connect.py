"""Programs on Spark Connect: in a process of its own, whose session is a Connect one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from pillarbox import KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment, WatermarkStrategy
from tests.connect import RaisedInTheClient


class CountPerMinute(KeyedProcessFunction):
    """Emits (key, minute's end, records in it) at the end of each minute."""

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
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    by_at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    counts = env.from_dataframe(df).assign_timestamps_and_watermarks(by_at).key_by("key").process(CountPerMinute())
    return counts.map_async(doubled).to_dataframe("key LONG, at LONG, seen INT")


def events(spark):
    return spark.range(1000).select((F.col("id") % 7).alias("key"), (F.col("id") * 500).alias("at"))


def batch(spark):
    return sorted(tuple(row) for row in program(spark, events(spark)).collect())


def streaming(spark, folder: Path):
    for part in range(3):
        one_file = events(spark).where(F.col("at").between(part * 200_000, part * 200_000 + 199_999)).coalesce(1)
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
    found = [
        tuple(row) for row in spark.read.schema("key LONG, at LONG, seen INT").parquet(str(folder / "out")).collect()
    ]
    return sorted(found), [progress["observedMetrics"] for progress in query.recentProgress]


def raises(spark, text):
    raise ValueError(text)


def test_what_is_raised_in_the_client_comes_back(connect):
    with pytest.raises(RaisedInTheClient, match="no such thing") as raised:
        connect.run(raises, "no such thing")
    assert (raised.value.type, raised.value.message) == ("ValueError", "no such thing")


def test_a_keyed_and_an_async_level_in_batch_and_streaming(connect, tmp_path):
    right = Counter((n % 7, (n * 500 // 60_000 + 1) * 60_000) for n in range(1000))
    doubled = sorted((key, end, 2 * count) for (key, end), count in right.items())
    assert connect.run(batch) == doubled
    found, metrics = connect.run(streaming, tmp_path)
    assert found == [row for row in doubled if row[1] <= 499_500]
    assert [list(epoch) for epoch in metrics] == [["pillarbox"]] * len(metrics)


def in_the_session(spark, folder: Path):
    """What is around a streaming program in its session, and what the queries were started with."""
    events(spark).where("at < 100000").coalesce(1).write.parquet(str(folder / "in"))
    df = spark.readStream.schema("key LONG, at LONG").parquet(str(folder / "in"))
    spark.conf.set("spark.sql.shuffle.partitions", "6")
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
    found = sorted(map(tuple, spark.sql("SELECT * FROM view").collect()))
    return dict(spark.conf.getAll) == settings, started, found


def test_a_program_runs_in_the_users_session(connect, tmp_path):
    restored, started, found = connect.run(in_the_session, tmp_path)
    assert restored
    assert started == {
        "own": ("6", "HDFSBackedStateStoreProvider", True),
        "view": ("2", "RocksDBStateStoreProvider", True),
    }
    assert found == [(key, 2 * count) for key, count in sorted(Counter(n % 7 for n in range(120)).items())]
