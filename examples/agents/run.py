"""Runs the agents on a folder's files: ``python -m examples.agents.run FOLDER URL``.

After a crash, the same command resumes from the checkpoint in the folder. Each epoch writes Parquet files into its own
folder; a repeated epoch overwrites them. ``epochs.jsonl`` has a line per epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pillarbox
from examples.agents.job import COLUMNS, MODEL, SCHEMA, answers
from pillarbox import Budget, StreamExecutionEnvironment, local_session

REFUSED = "customer STRING, number LONG, error STRING"


def run(spark: SparkSession, folder: Path, url: str, budget: Budget = MODEL) -> None:
    """Run the query until it has answered all lines."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    source = spark.readStream.schema(SCHEMA).option("header", "true").option("maxFilesPerTrigger", 1)
    lines, refused = answers(env, source.csv(str(folder / "chats")), url, budget)

    def write(outputs: dict[str, DataFrame], epoch: int) -> None:
        for name, output in outputs.items():
            output.write.mode("overwrite").parquet(str(folder / name / f"epoch={epoch}"))

    writer = env.for_each_batch(write, {"answers": (lines, COLUMNS), "refused": (refused, REFUSED)})
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    follow(pillarbox.start(writer), folder / "epochs.jsonl")


def follow(query: Any, path: Path) -> None:
    """Write and print a line for each epoch, until the query ends."""
    last, is_active = -1, True
    with path.open("a") as file:
        while is_active:
            is_active = query.isActive
            for progress in [progress for progress in query.recentProgress if progress["batchId"] > last]:
                last = progress["batchId"]
                carried = sum(task.counters.get("agents.in_flight", 0) for task in pillarbox.metrics(progress))
                # Spark Connect has no total.
                rows = sum(source["numInputRows"] for source in progress["sources"])
                epoch = {"epoch": last, "time": time.time(), "rows": rows, "carried": carried}
                print(json.dumps(epoch), file=file, flush=True)
                print(f"epoch {last:3}: {epoch['rows']:4} lines, {carried:3} carried over", flush=True)
            time.sleep(0.1)
    query.awaitTermination()  # raises the query's error


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url", help="the address of the model")
    arguments = parser.parse_args()
    spark = local_session(2, app_name="agents", spark__log__level="ERROR", spark__sql__session__timeZone="UTC")
    try:
        run(spark, arguments.folder, arguments.url)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
