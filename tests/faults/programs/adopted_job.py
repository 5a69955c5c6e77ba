"""Adopts a Spark query's checkpoint HOME/stopped, and runs the program on pillarbox until its input ends.

python -m tests.faults.programs.adopted_job HOME EVENTS

EVENTS is the folder for the event log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import CheckpointMismatchError, StreamExecutionEnvironment
from tests.spark.stateful_programs.interpreter import OUTPUT, SCHEMA, Interpreter


def run(spark: SparkSession, home: Path, name: str, program: Any) -> None:
    out = home / f"{name}-out"
    out.mkdir(exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        rows = sorted(map(list, batch.collect()), key=repr)
        if rows:
            (out / "hidden").write_text(json.dumps(rows))
            (out / "hidden").rename(out / f"{number:03}")

    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str((home / "in").resolve()))
    program(df.withWatermark("t", "2 seconds")).transformWithState(
        Interpreter(), OUTPUT, "update", "EventTime"
    ).writeStream.foreachBatch(write).option("checkpointLocation", str(home / name)).trigger(
        availableNow=True
    ).start().awaitTermination()


def main(home: Path, events: Path) -> None:
    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    spark: SparkSession = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    savepoint = home / "savepoint"
    try:
        pillarbox.adopt(spark, str(home / "stopped"), str(savepoint), Interpreter())
    except CheckpointMismatchError as error:
        assert "is already a savepoint" in str(error), error
    env = StreamExecutionEnvironment.get_execution_environment(spark).from_savepoint(savepoint)
    run(spark, home, "adopted", lambda df: pillarbox.group_by(df, "k", env=env))
    (home / "done").touch()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
