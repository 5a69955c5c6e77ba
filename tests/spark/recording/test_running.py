from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import StreamExecutionEnvironment
from pillarbox._runtime.spark.checkpoint.copy import CheckpointCopy, CheckpointCopyError
from pillarbox._runtime.spark.checkpoint.look import read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox_tools.cli import commands as all_of_them
from pillarbox_tools.cli.all_commands import commands
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.replay import replay
from tests.spark.recording.program import Inbox, Rates, Seen

pytestmark = [pytest.mark.spark, pytest.mark.slow("two queries, whose state is read several times")]
FIRST = 1_700_000_000_000


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Any, Inbox, str]]:
    inbox, checkpoint = Inbox(tmp_path / "payments"), str(tmp_path / "checkpoint")
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    seen = env.from_dataframe(inbox.read(spark)).key_by("card").process(Seen()).uid("seen")
    writer = seen.to_dataframe("card STRING, n LONG").writeStream.format("noop")
    query = pillarbox.start(writer.option("checkpointLocation", checkpoint))
    put(inbox, query)
    yield query, inbox, checkpoint
    query.stop()


def put(inbox: Inbox, query: Any) -> None:
    inbox.put(*((str(10_040 + number % 3), 1, FIRST + number) for number in range(9)))
    query.processAllAvailable()


def copies(checkpoint: str) -> list[Path]:
    return list(Path(checkpoint).parent.glob("checkpoint-copy-*"))


def test_a_look_reads_a_copy_if_an_epoch_disappears(spark: SparkSession, running: tuple[Any, Inbox, str]) -> None:
    query, inbox, checkpoint = running
    seen: list[tuple[int, bool]] = []

    def read(files: CheckpointState) -> int:
        seen.append((files.epoch, files.is_copy))
        if not files.is_copy:
            put(inbox, query)  # as if Spark had removed the epoch because of this one
            raise FileNotFoundError(files.epoch)
        return sum(len(files.heads(operator)) for operator in files.stateful)

    assert read_epoch(spark, checkpoint, None, read) > 0
    assert seen == [(0, False), (1, True)]
    assert copies(checkpoint) == []


def test_an_error_that_no_newer_epoch_explains_is_raised(spark: SparkSession, running: tuple[Any, Inbox, str]) -> None:
    def read(files: CheckpointState) -> None:
        raise FileNotFoundError(files.epoch)

    with pytest.raises(FileNotFoundError):
        read_epoch(spark, running[2], None, read)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_copy_has_what_an_epoch_needs(spark: SparkSession, running: tuple[Any, Inbox, str], is_local: bool) -> None:
    query, inbox, checkpoint = running
    for _ in range(3):
        put(inbox, query)
    copy = CheckpointCopy(spark, checkpoint, 2, before=True)
    assert copy._local is not None
    copy._local = copy._local if is_local else None  # as if it was on a store
    copy.make()
    try:
        folder = Path(copy.path)
        assert {path.name for path in (folder / "offsets").iterdir() if path.name.isdigit()} == {"1", "2"}
        assert {path.name for path in (folder / "commits").iterdir() if path.name.isdigit()} == {"1", "2"}
        names = [path.name for path in folder.glob("state/0/0/*.*") if path.name[0].isdigit()]
        versions = {int(re.split(r"\D", name)[0]) for name in names}
        assert {2, 3} <= versions
        assert max(versions) == 3
        copy.rewind()
        assert not (folder / "commits" / "2").exists()
    finally:
        copy.remove()
    # An epoch whose state is incomplete is not copied.
    for file in Path(checkpoint).glob("state/0/0/*.changelog"):
        file.unlink()
    copy = CheckpointCopy(spark, checkpoint, 3)
    with pytest.raises(CheckpointCopyError, match="Spark has removed state of epoch 3, because the query is running"):
        copy.make()
    copy.remove()
    assert copies(checkpoint) == []


def test_the_history_of_a_key(spark: SparkSession, running: tuple[Any, Inbox, str]) -> None:
    query, inbox, checkpoint = running
    put(inbox, query)
    result = pillarbox.key_history(spark, checkpoint, "seen", "10041")
    assert (result["key"], result["epochs"]) == ("'10041'", [0, 1])
    assert result["state"] == [{"name": "seen", "value": "6", "changed": 1, "values": ["3", "6"]}]
    assert result["timers"][0]["at"] == FIRST + 1 + 90_000
    assert pillarbox.key_history(spark, checkpoint, "seen", 17)["messages"] == [
        "epoch 1 has no state and no timers of this key"
    ]
    (Path(checkpoint) / "offsets" / "0").write_text("v")
    result = pillarbox.key_history(spark, checkpoint, "seen", "10041")
    assert (result["epochs"], result["state"][0]["value"]) == ([1], "6")
    [message] = result["messages"]
    assert message.startswith(f"epoch 0 cannot be read: checkpoint {checkpoint}: the file offsets/0 ")


def test_the_command_of_a_key(
    spark: SparkSession, running: tuple[Any, Inbox, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_of_them, "session", lambda *arguments, **named: nullcontext(spark))
    done = CliRunner().invoke(commands, ["key", running[2], "seen", "10041", "--json"])
    assert json.loads(done.stdout)["state"][0]["value"] == "3"
    done = CliRunner().invoke(commands, ["key", running[2], "seen", "10041"])
    assert "seen" in done.stdout
    assert "the first watermark in this subtask" in done.stdout
    done = CliRunner().invoke(commands, ["key", running[2], "nothing", "10041"])
    assert (done.exit_code, "no operator with state has the uid 'nothing'" in done.output) == (1, True)


def test_a_broadcast_variable_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    inbox, checkpoint = Inbox(tmp_path / "payments"), str(tmp_path / "checkpoint")
    rates = spark.sparkContext.broadcast({"eur": 2})
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    stream = env.from_dataframe(inbox.read(spark)).key_by("card").process(Rates(rates)).uid("rates")
    writer = stream.to_dataframe("card STRING, amount LONG").writeStream.format("noop")
    query = pillarbox.start(writer.option("checkpointLocation", checkpoint))
    try:
        put(inbox, query)
    finally:
        query.stop()
    folder = tmp_path / "recording"
    pillarbox.record(writer, str(folder), checkpointLocation=checkpoint, epoch=0, uid="rates", key="10041")
    rerun = replay(read_recording(folder), diff=True)
    assert (rerun.error, rerun.sent > 0, rerun.is_same) == (None, True, True)
    assert copies(checkpoint) == []
