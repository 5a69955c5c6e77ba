from __future__ import annotations

import json
from typing import Any

import pytest

from pillarbox import (
    KeyedProcessFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    start,
)

pytestmark = pytest.mark.spark


class Count(KeyedProcessFunction):
    def __init__(self, ttl: Any) -> None:
        self.ttl = StateTtlConfig(ttl)

    def open(self, runtime_context):
        count = ValueStateDescriptor("count", int, default=0)
        count.enable_time_to_live(self.ttl)
        self.count = runtime_context.get_state(count)

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield row.key, self.count.value()


def test_the_time_is_that_of_the_batch(spark, tmp_path):
    seen: dict[int, list[tuple[int, int]]] = {}
    offsets, commits = (tmp_path / "checkpoint" / log for log in ("offsets", "commits"))

    def run(ttl: Any) -> None:
        source = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        counted = env.from_dataframe(source).key_by("key").process(Count(ttl)).uid("count")
        writer = counted.to_dataframe("key LONG, n INT").writeStream
        writer = writer.foreachBatch(lambda batch, number: seen.update({number: sorted(map(tuple, batch.collect()))}))
        query = start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
        query.awaitTermination()

    def arrive() -> None:
        spark.range(3).toDF("key").coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    def time_of(number: int) -> int:
        return int(json.loads((offsets / str(number)).read_text().splitlines()[1])["batchTimestampMs"])

    def again(number: int, at: int) -> None:
        for file in commits.glob(f"*{number}*"):
            file.unlink()
        (offsets / f".{number}.crc").unlink(missing_ok=True)
        version, noted, *sources = (offsets / str(number)).read_text().splitlines()
        noted = json.dumps({**json.loads(noted), "batchTimestampMs": at})
        (offsets / str(number)).write_text("\n".join([version, noted, *sources]))
        del seen[number]

    def counts(n: int) -> list[tuple[int, int]]:
        return [(key, n) for key in range(3)]

    arrive()
    arrive()
    run("1 hour")
    assert seen == {0: counts(1), 1: counts(2)}
    # A millisecond has passed since the first batch by the machine's clock, but not by the batches' clock.
    again(1, time_of(0))
    run(1)
    assert seen == {0: counts(1), 1: counts(2)}
    # An hour has passed by the batches' clock, but not by the machine's clock.
    again(1, time_of(0) + 3_600_001)
    run("1 hour")
    assert seen == {0: counts(1), 1: counts(1)}
