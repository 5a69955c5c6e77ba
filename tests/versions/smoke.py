"""README's first program in batch and streaming, with the running Python and Spark: ``smoke.py HOME [everything]``.

The first run executes the batch program and the first half of the streaming program; a second run on the same HOME
continues from its checkpoint. With ``everything``, each run also executes an epoch of a program that uses everything
that a checkpoint can contain. Under ``spark-submit``, the session is the submitted application's, otherwise pillarbox's
local session. The last line contains the results as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import runpy
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pillarbox

FIRST_PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "first_program.py"
COLUMNS = "order_id STRING, what STRING, at LONG"

# Files in reading order; each is an epoch. A timer waits for one minute more.
FIRST = [[("A1", "ordered", 0), ("A2", "ordered", 60_000)], [("A1", "paid", 300_000)]]
SECOND = [[("A4", "ordered", 700_000)], [("A5", "ordered", 2_000_000)]]

# Additional values of each result, with types that Python and Spark convert specially.
TYPES = """
    more STRUCT<price: DECIMAL(10, 2), day: DATE>, by MAP<STRING, ARRAY<TIMESTAMP_NTZ>>, took INTERVAL DAY TO SECOND,
    sent TIMESTAMP, sents ARRAY<TIMESTAMP>, raw BINARY
"""
AT = dt.datetime(2024, 3, 10, 2, 30, 0, 7)
MORE = ((Decimal("-1.25"), dt.date(1, 1, 1)), {"k": [AT, None]}, dt.timedelta(microseconds=-1), AT, [None, AT], b"\0")


def _submitted() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def everything(spark: Any, home: Path) -> Any:
    from tests.faults.programs.everything_job import Operated
    from tests.faults.programs.job import make_events

    return Operated(spark, home / "everything", make_events(11, epochs=2, keys=12, records=60), subtasks=3)


def main(home: Path, *more: str) -> None:
    if "SPARK_ENV_LOADED" in os.environ:  # set by Spark's own scripts
        pillarbox.local_session = _submitted  # type: ignore[assignment]
    answer = run(home)
    spark = pillarbox.local_session()
    if more == ("everything",):
        everything(spark, home).run(2)
    spark.stop()
    print(json.dumps(answer))


def run(home: Path) -> dict[str, Any]:
    program = runpy.run_path(str(FIRST_PROGRAM), run_name="__main__")
    spark = program["spark"]
    spark.sparkContext.setLogLevel("ERROR")
    batch = [list(row) for row in program["unpaid"].to_dataframe("order_id STRING, at LONG").collect()]

    restarted = (home / "in").exists()
    for rows in SECOND if restarted else FIRST:
        file = spark.createDataFrame(rows, COLUMNS).coalesce(1)
        file.write.mode("append").parquet(str(home / "in"))
    events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(home / "in"))
    env = pillarbox.StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    unpaid = (
        env.from_dataframe(events)
        .assign_timestamps_and_watermarks(program["in_order"])
        .key_by("order_id")
        .process(program["UnpaidOrders"]())
        .uid("unpaid-orders")
        .map(lambda order: (*order, *MORE))
        .to_dataframe("order_id STRING, at LONG, " + TYPES)
    )
    results: list[Any] = []

    def take(rows: Any, epoch: int) -> None:
        for row in rows.collect():
            assert tuple(row[2:]) == MORE, row
            results.append(list(row[:2]))

    query = (
        unpaid.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    epochs = [progress["batchId"] for progress in query.recentProgress]
    levels = sorted({task.level for progress in query.recentProgress for task in pillarbox.metrics(progress)})
    state = pillarbox.read_state(spark, str(home / "checkpoint"), "unpaid-orders")
    keys = sorted(row.key for row in state.collect())
    return {
        "spark": sys.modules["pyspark"].__version__,
        "batch": batch,
        "streaming": sorted(results),
        "epochs": epochs,
        "keys": keys,
        "levels": levels,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
