"""State with a time-to-live on a real local Spark: the time is that of the batch, also when it is run again."""

from __future__ import annotations

import json
from pathlib import Path
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
        yield row.key, self.count.value(), self.count._rows.now


def test_the_time_is_that_of_the_batch(spark, tmp_path):
    seen: dict[int, list[tuple[int, int, int]]] = {}

    def run(ttl: Any) -> None:
        source = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        counted = env.from_dataframe(source).key_by("key").process(Count(ttl)).uid("count")
        writer = counted.to_dataframe("key LONG, n INT, now LONG").writeStream
        writer = writer.foreachBatch(lambda batch, number: seen.update({number: sorted(map(tuple, batch.collect()))}))
        query = start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
        query.awaitTermination()

    def arrive() -> None:
        spark.range(3).toDF("key").coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    def batch_timestamp(number: int) -> int:
        lines = Path(tmp_path / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"])

    arrive()
    arrive()
    run("1 hour")
    times = [batch_timestamp(0), batch_timestamp(1)]
    first = {number: [(key, number + 1, times[number]) for key in range(3)] for number in range(2)}
    assert seen == first and times[0] < times[1]
    # As after a crash: the batch was not committed, and is run again.
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    del seen[1]
    arrive()
    run("1 hour")
    assert seen == {**first, 2: [(key, 3, batch_timestamp(2)) for key in range(3)]}
    # With another time-to-live over the same state.
    arrive()
    run(1)
    assert seen[3] == [(key, 1, batch_timestamp(3)) for key in range(3)]
