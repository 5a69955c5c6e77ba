"""Random programs emit the same rows in each micro-batch on Spark and on pillarbox.

``interpreter.py`` creates the programs. Each key has its own program, so the key with a difference names a small
program that reproduces it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
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
PROGRAMS = 20
GROUPS: dict[str, Callable[[DataFrame, str], Any]] = {"Spark": DataFrame.groupBy, "pillarbox": pillarbox.group_by}
HOUR = 3_600_000
PROGRAM_KINDS: dict[str, Callable[[Any], DataFrame]] = {
    "rows": lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "update", "EventTime"),
    "frames": lambda grouped: grouped.transformWithStateInPandas(FrameInterpreter(), OUTPUT, "append", "EventTime"),
    "group state": lambda grouped: grouped.applyInPandasWithState(
        run_with_state, OUTPUT, "n INT, s STRING", "append", "EventTimeTimeout"
    ),
    "one partition": lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "update", "EventTime"),
    "no time": lambda grouped: grouped.transformWithState(Interpreter(), OUTPUT, "update", "None"),
    "expires": lambda grouped: grouped.transformWithState(
        Interpreter(1, by_clock=True), OUTPUT, "update", "ProcessingTime"
    ),
    "lives": lambda grouped: grouped.transformWithState(
        Interpreter(HOUR, by_clock=True), OUTPUT, "update", "ProcessingTime"
    ),
}


def results(
    spark: SparkSession, source: Path, checkpoint: Path, run: Callable[[DataFrame], DataFrame], restarts: list[int]
) -> dict[int, dict[str, list[str]]]:
    collected: dict[int, dict[str, list[str]]] = {}
    files = sorted(source.iterdir())
    arrived = checkpoint / "in"
    arrived.mkdir(parents=True)

    def take(batch: DataFrame, number: int) -> None:
        texts = collected[number] = defaultdict(list)
        for row in batch.collect():
            texts[row.k].append(row.said)

    def start() -> Any:
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(arrived))
        df = run(df.withWatermark("t", "2 seconds"))
        return df.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint / "query")).start()

    query = start()
    try:
        for number, path in enumerate(files):
            if number in restarts:
                query.stop()
                query = start()
            # (Two at a time: so some micro-batches follow each other without one in between that has no data.)
            os.link(path, arrived / path.name)
            if number % 3 != 1:
                query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    return {number: dict(texts) for number, texts in collected.items() if texts}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session for event-time programs. With processing time, Spark would run micro-batches without data forever."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _joined(batches: dict[int, dict[str, list[str]]]) -> dict[str, list[str]]:
    joined: dict[str, list[str]] = defaultdict(list)
    for _, by_key in sorted(batches.items()):
        for key, texts in by_key.items():
            joined[key] += texts
    return joined


SEEDS = range(100 if LONG else 1)
KINDS = list(PROGRAM_KINDS) if LONG else ["rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow("a query on Spark and one on pillarbox")
def test_a_program_does_the_same(session: SparkSession, tmp_path: Path, kind: str, seed: int) -> None:
    if kind in ("expires", "lives"):
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    if kind == "one partition":
        session.conf.set("spark.sql.shuffle.partitions", "1")
    rows = draw_rows(seed, PROGRAMS, 6, timers=kind != "no time")
    write_rows(rows, tmp_path / "rows")
    collected = {}
    for name, group_by in GROUPS.items():

        def program(df: DataFrame, group_by: Callable[..., Any] = group_by) -> DataFrame:
            return PROGRAM_KINDS[kind](group_by(df, "k"))

        collected[name] = results(session, tmp_path / "rows", tmp_path / name, program, [3])
    if kind in ("expires", "lives"):
        # By the clock, a query of pillarbox begins with a micro-batch without data.
        collected = {name: {0: _joined(batches)} for name, batches in collected.items()}
    for number in sorted({*collected["Spark"], *collected["pillarbox"]}):
        spark, ours = (collected[name].get(number, {}) for name in ("Spark", "pillarbox"))
        for key in sorted({*spark, *ours}, key=str):
            input_rows = [row for batch in rows for row in batch if row["k"] == key]
            assert ours.get(key) == spark.get(key), f"micro-batch {number}, {kind}, seed {seed}: {input_rows}"
    assert sum(map(len, collected["Spark"].values())) >= PROGRAMS
