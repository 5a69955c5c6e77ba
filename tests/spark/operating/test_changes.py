"""Changes of a query's environment on one checkpoint, one for each row of a table in docs/operations.md. Sums continue.

See tests/runtime/changes/test_changed_programs.py for changed programs, test_source_changes.py for changed sources, and
test_operate.py for changed parallelism.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor

SUMS = "card STRING, n LONG"


class Sum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG(), default=0))

    def process_element(self, value, ctx):
        self.sum.update(self.sum.value() + value.n)
        yield value.card, self.sum.value()


class Home:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.sums: Counter[str] = Counter()
        self.parts = 0
        (folder / "in").mkdir()

    def add(self, files: int = 1) -> list[tuple[str, int]]:
        results = []
        for _ in range(files):
            rows = {"a": 1, f"b{self.parts % 2}": 10}
            self.sums.update(rows)
            results += [(card, self.sums[card]) for card in rows]
            text = "\n".join(json.dumps({"card": card, "n": n, "shop": "s"}) for card, n in rows.items())
            (self.folder / "new").write_text(text)
            (self.folder / "new").rename(self.folder / "in" / f"{self.parts}.json")
            self.parts += 1
        return sorted(results)

    def writer(self, *, changed: bool = False, checkpoint: str = "checkpoint") -> Any:
        schema = f"{SUMS}, shop STRING" if changed else SUMS
        read = (
            self.spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 2 if changed else 1)
            .json(str(self.folder / "in"))
        )
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(2).set_max_parallelism(2)
        if not changed:
            rows = env.from_dataframe(read).key_by("card").process(Sum()).uid("sum").to_dataframe(SUMS)
        else:
            paid = env.from_dataframe(read.where("n < 100").withColumn("twice", read.n * 2))
            sums = paid.filter(lambda value: value.twice > 0).key_by("card").process(Sum()).uid("sum")
            rows = sums.map(lambda pair: pair).to_dataframe(SUMS).where("n > 0")
        return rows.writeStream.option("checkpointLocation", str(self.folder / checkpoint))

    def run(self, writer: Any) -> list[tuple[str, int]]:
        seen: list[Any] = []
        query = pillarbox.start(writer.foreachBatch(lambda batch, number: seen.extend(map(tuple, batch.collect()))))
        query.processAllAvailable()
        query.stop()
        return sorted(seen)

    def write(self, writer: Any, folder: str) -> list[tuple[str, int]]:
        out = str(self.folder / folder)
        pillarbox.start(writer.trigger(availableNow=True), out).awaitTermination()
        return sorted(map(tuple, self.spark.read.schema(SUMS).parquet(out).collect()))


@pytest.mark.long("runtime/changes has all changes; test_operate.py starts a changed query on Spark")
def test_changes_around_a_program(spark: SparkSession, tmp_path: Path) -> None:
    spark = spark.newSession()
    home = Home(spark, tmp_path)
    # Every third entry of a file sink's log includes the earlier ones; a log that begins later does not miss them.
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", 3)
    assert home.add(4) == home.run(home.writer().trigger(availableNow=True))
    for name, value in (
        ("shuffle.partitions", 7),
        ("streaming.stateStore.minDeltasForSnapshot", 1),
        ("streaming.minBatchesToRetain", 20),
        ("streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true"),
    ):
        spark.conf.set(f"spark.sql.{name}", value)
    assert home.add() == home.run(home.writer(changed=True).trigger(processingTime="0 seconds"))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    expected = home.add(3)
    assert expected == home.write(home.writer(checkpoint="copy"), "one"), "epochs 5 to 7, in a folder of their own"
    assert expected == home.write(home.writer(), "two"), "the checkpoint that was copied goes on as well"
    assert home.add(2) == home.write(home.writer(), "three"), "epochs 8 and 9"
