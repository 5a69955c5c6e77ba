"""A task is recorded on Spark, and replayed in a process without Java, with the same failure or state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import ConfigurationError, ProgramError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._runtime.spark.session.classic import ClassicWriter
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.replay import replay
from tests.spark.recording.program import Inbox, Seen, Totals
from tests.support.sessions import tasks_are_tried_once

pytestmark = [pytest.mark.spark, pytest.mark.slow("four queries, and processes without Java")]
FIRST = 1_700_000_000_000


def program(spark: SparkSession, inbox: Inbox, *, calls: bool = False) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    payments = env.from_dataframe(inbox.read(spark)).assign_timestamps_and_watermarks(times)
    if calls:
        payments = payments.map_async(_ask, capacity=5, timeout="5 seconds").uid("ask")
    seen = payments.key_by("card").process(Seen()).uid("seen")
    totals = seen.key_by(lambda count: count[1] % 3).process(Totals()).uid("totals")
    return totals.to_dataframe("digit LONG, total LONG").writeStream.format("noop")


async def _ask(payment: Any) -> Any:
    return payment


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Inbox, str]]:
    folder = tmp_path_factory.mktemp("recorded")
    inbox, checkpoint = Inbox(folder / "payments"), str(folder / "checkpoint")
    for epoch in range(3):
        inbox.put(*((f"c{number % 7}", 1, FIRST + 60_000 * epoch + number) for number in range(300)))
    query = pillarbox.start(program(spark, inbox).option("checkpointLocation", checkpoint))
    query.processAllAvailable()
    later = ((f"c{number % 7}", 1, FIRST + 200_000 + number) for number in range(300))
    with tasks_are_tried_once(spark):
        inbox.put(*later, ("c3", -5, FIRST + 210_000))
        with pytest.raises(StreamingQueryException, match="an amount of -5"):
            query.awaitTermination()
    yield inbox, checkpoint


def replayed(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    without = {**os.environ, "JAVA_HOME": "/none", "PATH": "/none"}
    command = [sys.executable, "-m", "pillarbox", "replay", str(folder), "--json", *options]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_task_that_failed(spark: SparkSession, ran: tuple[Inbox, str], tmp_path: Path) -> None:
    inbox, checkpoint = ran
    before = sorted(path for path in Path(checkpoint).rglob("*") if path.is_file())
    writer = program(spark, inbox).option("checkpointLocation", checkpoint).queryName("payments")
    folder = pillarbox.record(writer, str(tmp_path / "failed"))
    # The checkpoint and the writer are unchanged, and the copy is deleted.
    assert sorted(path for path in Path(checkpoint).rglob("*") if path.is_file()) == before
    assert not list(Path(checkpoint).parent.glob("checkpoint-copy-*"))
    start = WriterStart(writer, "start")
    assert (start.checkpoint, start.is_once) == (checkpoint, False)
    assert ClassicWriter(spark, writer).option("queryName") == "payments"
    code, result = replayed(Path(folder), "--diff")
    failure = result["failure"]
    assert (code, result["uid"], result["epoch"], result["differs"]) == (0, "seen", 3, [])
    assert (failure["cause"], failure["key"]) == ("ValueError", "'c3'")
    assert "an amount of -5" in failure["message"] or "amount=-5" in failure["record"]
    # It stops as requested; the number is the failure's.
    code, result = replayed(Path(folder), "--at", str(failure["number"]))
    assert (code, result["stopped"], result["failure"]) == (0, True, None)
    with pytest.raises(ConfigurationError, match="exists: pass a new directory"):
        pillarbox.record(program(spark, inbox), folder, checkpointLocation=checkpoint)


@pytest.mark.long("four epochs run again; the test of the failed task shows the rest")
@pytest.mark.parametrize(
    ("uid", "where"),
    [("seen", {"key": "c3"}), ("totals", {"subtask": 0}), ("totals", {"key": "1"}), ("timestamps-2", {"subtask": 0})],
)
def test_a_task_of_a_committed_epoch(
    spark: SparkSession, ran: tuple[Inbox, str], tmp_path: Path, uid: str, where: dict[str, Any]
) -> None:
    inbox, checkpoint = ran
    folder = tmp_path / "recording"
    try:
        pillarbox.record(program(spark, inbox), str(folder), epoch=2, uid=uid, checkpointLocation=checkpoint, **where)
    except ProgramError as error:
        assert "did not run in epoch 2" in str(error)
        assert where == {"subtask": 0}
        assert not folder.exists()
        return
    code, result = replayed(folder, "--diff")
    assert (code, result["failure"], result["differs"]) == (0, None, [])
    assert result["records"] > 0
    assert result["state"] == ([] if uid != "timestamps-2" else None)


@pytest.mark.long("an epoch runs again; tests of the comparison need none")
def test_another_state_is_seen(spark: SparkSession, ran: tuple[Inbox, str], tmp_path: Path) -> None:
    inbox, checkpoint = ran
    options: dict[str, Any] = {"epoch": 2, "uid": "seen", "key": "c3", "checkpointLocation": checkpoint}
    folder = Path(pillarbox.record(program(spark, inbox), str(tmp_path / "recording"), **options))
    # As if the program had been another one: an epoch's state is missing before it.
    (folder / "state").write_bytes(b"\x80\x05}\x94.")
    result = replay(read_recording(folder), diff=True)
    assert result.state
    assert {difference.owner for difference in result.state} >= {"'c3'"}


@pytest.mark.long("errors alone; the test of the task that failed records on Spark")
def test_wrong_arguments_of_record(spark: SparkSession, ran: tuple[Inbox, str], tmp_path: Path) -> None:
    inbox, checkpoint = ran

    def record(**options: Any) -> Any:
        return pillarbox.record(program(spark, inbox), str(tmp_path / "none"), checkpointLocation=checkpoint, **options)

    with pytest.raises(ProgramError, match=r"no operator with the uid 'sene'; it has .*'seen'"):
        record(epoch=2, uid="sene", subtask=0)
    with pytest.raises(ProgramError, match="select the subtask of 'seen'"):
        record(epoch=2, uid="seen")
    with pytest.raises(pillarbox.CheckpointMismatchError, match=r"epoch 9 has no offsets: it never began"):
        record(epoch=9, uid="seen", subtask=0)
    with pytest.raises(ConfigurationError, match=r"its state files have .* bytes.*pass limit="):
        record(epoch=2, uid="seen", key="c3", limit=10)
    with pytest.raises(ConfigurationError, match=r"operator 'ask' \(.*_ask\) runs before 'seen' and calls a service"):
        pillarbox.record(
            program(spark, inbox, calls=True),
            str(tmp_path / "none"),
            checkpointLocation=checkpoint,
            epoch=2,
            uid="seen",
            subtask=0,
        )
    lines = spark.readStream.format("socket").option("host", "localhost").option("port", 9).load()
    stream = StreamExecutionEnvironment.get_execution_environment(spark).from_dataframe(lines)
    socket = stream.map(lambda row: row).uid("x").to_dataframe("value STRING").writeStream.format("noop")
    with pytest.raises(ConfigurationError, match="reads a socket, which cannot repeat its rows"):
        pillarbox.record(socket, str(tmp_path / "none"), checkpointLocation=checkpoint, epoch=0, uid="x", subtask=0)
    # A missing file is one error with its name.
    gone = min(Path(inbox.folder).glob("*.json"))
    gone.rename(tmp_path / "away")
    try:
        with pytest.raises(
            pillarbox.CheckpointMismatchError, match=rf"epoch 0 read file:.*{gone.name}, which no longer"
        ):
            record(epoch=0, uid="seen", subtask=0)
    finally:
        (tmp_path / "away").rename(gone)
    assert not (tmp_path / "none").exists()
