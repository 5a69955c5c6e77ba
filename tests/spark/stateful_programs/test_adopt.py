"""A query of Spark's own is stopped, and pillarbox resumes from a savepoint of it: as Spark's query does.

Spark's query resumes on its own checkpoint, on the same files, and is the oracle.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pillarbox
from pillarbox import StreamExecutionEnvironment
from tests.spark.stateful_programs.interpreter import (
    OUTPUT,
    SCHEMA,
    FrameInterpreter,
    Interpreter,
    draw_rows,
    run_with_state,
    write_rows,
)

LONG = "PILLARBOX_LONG" in os.environ
HOUR = 3_600_000
STATE = "n INT, s STRING"
# By name: the processor, or None, and the query of a grouped DataFrame.
PROGRAMS: dict[str, tuple[Any, Callable[[Any], DataFrame]]] = {
    "rows": (Interpreter(), lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "update", "EventTime")),
    "frames": (
        FrameInterpreter(),
        lambda grouped: grouped.transformWithStateInPandas(FrameInterpreter(), OUTPUT, "append", "EventTime"),
    ),
    "group state": (
        None,
        lambda grouped: grouped.applyInPandasWithState(run_with_state, OUTPUT, STATE, "append", "EventTimeTimeout"),
    ),
    "no time": (Interpreter(), lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "update", "None")),
    "expires": (
        Interpreter(1, by_clock=True),
        lambda grouped: grouped.transformWithState(Interpreter(1, by_clock=True), OUTPUT, "update", "ProcessingTime"),
    ),
    "lives": (
        Interpreter(HOUR, by_clock=True),
        lambda grouped: grouped.transformWithState(
            Interpreter(HOUR, by_clock=True), OUTPUT, "update", "ProcessingTime"
        ),
    ),
}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


class Files:
    """Files of rows, of which a query gets one after the other."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session = session
        self.files = sorted((folder / "rows").iterdir())
        self.arrived = folder / "in"
        self.arrived.mkdir()

    def add(self, count: int) -> None:
        for path in self.files[:count]:
            os.link(path, self.arrived / path.name)
        del self.files[:count]

    def run(self, checkpoint: Path, program: Callable[[DataFrame], DataFrame]) -> list[list[Any]]:
        """Run a query on all files; return the rows of each micro-batch that emits any, sorted."""
        found: list[list[Any]] = []

        def take(batch: DataFrame, number: int) -> None:
            rows = sorted(map(tuple, batch.collect()))
            if rows:
                found.append(rows)

        df = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.arrived))
        query = (
            program(df.withColumn("of", F.lit(1)).withWatermark("t", "2 seconds"))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found


SEEDS = range(10 if LONG else 1)
KINDS = list(PROGRAMS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow("two queries on Spark, and one on pillarbox")
def test_an_adopted_query_emits_what_spark_s_would_have(
    session: SparkSession, tmp_path: Path, kind: str, seed: int
) -> None:
    by_clock = kind in ("expires", "lives")
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(not by_clock).lower())
    processor, run = PROGRAMS[kind]
    write_rows(draw_rows(seed, 20, 6, timers=kind != "no time"), tmp_path / "rows")
    files = Files(session, tmp_path)
    files.add(3)
    files.run(tmp_path / "spark", lambda df: run(df.groupBy("k", "of")))
    shutil.copytree(tmp_path / "spark", tmp_path / "stopped")
    pillarbox.adopt(session, str(tmp_path / "stopped"), str(tmp_path / "savepoint"), processor)
    files.add(3)
    expected = files.run(tmp_path / "spark", lambda df: run(df.groupBy("k", "of")))
    env = StreamExecutionEnvironment.get_execution_environment(session).from_savepoint(str(tmp_path / "savepoint"))
    found = files.run(tmp_path / "adopted", lambda df: run(pillarbox.group_by(df, "k", "of", env=env)))
    if by_clock:  # a query of pillarbox begins with a micro-batch without data
        found, expected = ([sorted(chain(*batches))] for batches in (found, expected))
    assert found == expected
    assert sum(map(len, expected)) >= 20
