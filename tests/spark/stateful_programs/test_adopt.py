"""pillarbox adopts a stopped Spark query: it writes a savepoint, and resumes the query from it.

The results are compared with Spark's own query, resumed from its checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pillarbox
from pillarbox import CheckpointMismatchError, ProgramError, StreamExecutionEnvironment
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
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
        batches: list[list[Any]] = []

        def take(batch: DataFrame, number: int) -> None:
            rows = sorted(map(tuple, batch.collect()), key=repr)
            if rows:
                batches.append(rows)

        df = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.arrived))
        query = (
            program(df.withColumn("of", F.lit(1)).withWatermark("t", "2 seconds"))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return batches


NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
STORE = "spark.sql.streaming.stateStore"
# Further ways to run a program on Spark: the program, and settings.
WAYS = {
    "uncommitted": ("rows", {NO_DATA: "false"}),
    "expires": ("expires", {NO_DATA: "false"}),
    "lives": ("lives", {NO_DATA: "false"}),
    "format 2": ("rows", {f"{STORE}.checkpointFormatVersion": "2"}),
    "snapshots": ("rows", {f"{STORE}.rocksdb.changelogCheckpointing.enabled": "false"}),
    "one partition": ("rows", {"spark.sql.shuffle.partitions": "1"}),
    "group state of HDFS": (
        "group state",
        {f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"},
    ),
}
SEEDS = range(10 if LONG else 1)
KINDS = [*dict.fromkeys([*PROGRAMS, *WAYS])] if LONG else ["rows", "lives"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow("two queries on Spark, and one on pillarbox")
def test_an_adopted_query_emits_what_spark_s_would_have(
    session: SparkSession, tmp_path: Path, kind: str, seed: int
) -> None:
    name, settings = WAYS.get(kind, (kind, {}))
    processor, run = PROGRAMS[name]
    for setting, value in settings.items():
        session.conf.set(setting, value)
    write_rows(draw_rows(seed, 20, 6, timers=kind != "no time"), tmp_path / "rows")
    files = Files(session, tmp_path)
    files.add(3)
    files.run(tmp_path / "spark", lambda df: run(df.groupBy("k", "of")))
    if kind == "uncommitted":
        for commit in (tmp_path / "spark" / "commits").glob("*2*"):
            commit.unlink()
    shutil.copytree(tmp_path / "spark", tmp_path / "stopped")
    pillarbox.adopt(session, str(tmp_path / "stopped"), str(tmp_path / "savepoint"), processor)
    files.add(3)
    expected = files.run(tmp_path / "spark", lambda df: run(df.groupBy("k", "of")))
    env = StreamExecutionEnvironment.get_execution_environment(session).from_savepoint(str(tmp_path / "savepoint"))
    adopted = files.run(tmp_path / "adopted", lambda df: run(pillarbox.group_by(df, "k", "of", env=env)))
    if kind in ("expires", "lives"):  # a query of pillarbox begins with a micro-batch without data
        adopted, expected = ([sorted(chain(*batches), key=repr)] for batches in (adopted, expected))
    assert adopted == expected
    assert sum(map(len, expected)) >= 20


class OtherStates(Interpreter):
    def init(self, handle):
        handle.getValueState("value", "n INT, s STRING")
        handle.deleteIfExists("list")


class OtherType(Interpreter):
    def init(self, handle):
        handle.getValueState("value", "n LONG, s STRING", self.ttl)
        handle.getListState("list", "n INT", self.ttl)
        handle.getMapState("map", "k STRING", "n INT", self.ttl)
        handle.getValueState("later", "calls STRING")


@pytest.mark.slow("a query on Spark, one on pillarbox, and one that adopt() refuses")
def test_adopt_refuses_wrong_arguments(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(draw_rows(0, 5, 3, timers=True), tmp_path / "rows")
    files = Files(session, tmp_path)
    files.add(1)
    stopped, directory = str(tmp_path / "stopped"), str(tmp_path / "savepoint")
    _, run = PROGRAMS["rows"]
    files.run(tmp_path / "stopped", lambda df: run(df.groupBy("k")))

    def refused(error: type[Exception], message: str, processor: Any, checkpoint: str = stopped) -> None:
        with pytest.raises(error, match=message):
            pillarbox.adopt(session, checkpoint, directory, processor)
        assert not Path(directory).exists()

    refused(
        ProgramError, "runs transformWithStateInPySparkExec: pass its StatefulProcessor as processor=, not None", None
    )
    refused(
        CheckpointMismatchError,
        r"it has the states 'later', 'map', which the processor's init\(\) does not declare",
        OtherStates(),
    )
    refused(
        CheckpointMismatchError,
        r"the state 'value' is a value of struct<n:int,s:string>, but the processor's init\(\) declares a value of"
        " struct<n:bigint,s:string>",
        OtherType(),
    )
    refused(CheckpointMismatchError, "is not a checkpoint of a query", Interpreter(), str(tmp_path / "missing"))
    refused(PySparkRuntimeError, "INCORRECT_TIME_MODE_TO_ASSIGN_TTL", Interpreter(HOUR))
    with monkeypatch.context() as patch:
        read = CheckpointState.state_rows

        def without_timers(state: CheckpointState, **options: Any) -> DataFrame:
            options.pop("readRegisteredTimers", None)
            return read(state, **options)

        patch.setattr(CheckpointState, "state_rows", without_timers)
        refused(CheckpointMismatchError, "cannot read the timers: SparkRuntimeException", Interpreter())
    files.run(tmp_path / "pillarbox", lambda df: run(pillarbox.group_by(df, "k")))
    refused(
        CheckpointMismatchError,
        "is already a pillarbox checkpoint: write a savepoint",
        None,
        str(tmp_path / "pillarbox"),
    )
    several = tmp_path / "several"
    files.run(several, lambda df: run(df.dropDuplicates(["k", "t"]).groupBy("k")))
    refused(CheckpointMismatchError, "with a single stateful operator.* has .*'dedupe'", Interpreter(), str(several))
    times = tmp_path / "times"
    _, run = PROGRAMS["frames"]
    files.run(times, lambda df: run(df.groupBy("k", "t")))
    session.conf.set("spark.sql.session.timeZone", "Pacific/Marquesas")
    refused(
        CheckpointMismatchError,
        "its key contains a TIMESTAMP, which Spark stored with an offset",
        FrameInterpreter(),
        str(times),
    )
