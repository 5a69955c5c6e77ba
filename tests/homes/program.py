"""Emits counts and the pids of functions' processes, on any Spark master: ``program.py FOLDER JSON``.

The JSON object has ``master``, ``homes`` (the mode of home processes), and ``kills`` (whether to kill an executor). The
last line of output is a JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

EPOCHS, KEYS, PARTITIONS = 6, 60, 8
#: The environment variable that identifies all processes of one run.
MARK = "PILLARBOX_TESTS_RUN"
SECONDS = 2.0


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.field: Counter[Any] = Counter()
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, row, ctx):
        self.field[row.key] += 1
        self.seen.update((self.seen.value() or 0) + 1)
        yield row.key, self.field[row.key], self.seen.value(), os.getpid()


class Ask:
    """A request that takes longer than an epoch. Counts the requests in a file."""

    def __init__(self, asked: str) -> None:
        self.asked = asked

    def __call__(self, counted: Any) -> Any:
        with open(self.asked, "a") as file:
            file.write(f"{counted[0]} {counted[2]}\n")
        time.sleep(SECONDS)
        return counted


def processes(mark: str, part: bytes = b"") -> set[int]:
    results = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (path / "environ").read_bytes()
            if marked and part in (path / "cmdline").read_bytes():
                results.add(int(path.name))
        except OSError:
            pass  # it has ended
    return results


def session(options: dict[str, Any], folder: Path) -> SparkSession:
    builder: Any = SparkSession.builder.appName("homes").master(options["master"])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "OFF",
        "spark.pillarbox.homes": options["homes"],
        "spark.python.daemon.module": "pillarbox.daemon",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def main(folder: Path, options: dict[str, Any]) -> None:
    spark = session(options, folder)
    for _ in range(EPOCHS):
        spark.range(KEYS).selectExpr("id AS key").coalesce(1).write.mode("append").parquet(str(folder / "in"))
    rows = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(PARTITIONS)
    counted = env.from_dataframe(rows).key_by("key").process(Count()).uid("count")
    answered = counted.map_async(Ask(str(folder / "asked")), capacity=100, on_barrier="carry", timeout=None).uid("ask")
    frame = answered.to_dataframe("key LONG, field LONG, state LONG, pid LONG")
    out: dict[int, list[Any]] = {}
    killed: list[int] = []

    def take(batch: Any, number: int) -> None:
        out[number] = [tuple(row) for row in batch.collect()]
        if options.get("kills") and not killed and number == 2:
            killed.append(min(processes(os.environ[MARK], b"CoarseGrainedExecutorBackend")))
            os.kill(killed[0], signal.SIGKILL)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    query = pillarbox.start(writer.trigger(availableNow=True))
    query.awaitTermination()
    results = [row for batch in out.values() for row in batch]
    homes = {pid for *_, pid in results}
    asked = Counter((folder / "asked").read_text().splitlines())
    result = {
        "counted": sorted((key, state) for key, _, state, _ in results),
        "in_fields": sum(field == state for _, field, state, _ in results),
        "asked": len(asked),
        "requests": asked.total(),
        "homes": len(homes),
        "alive": [pid for pid in homes if Path(f"/proc/{pid}").exists()],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
