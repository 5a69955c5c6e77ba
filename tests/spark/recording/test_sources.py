"""Recordings of programs with several sources or with sources other than files, and of running queries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._runtime.spark.running.query_command import request_record
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.replay import replay
from tests.spark.recording.program import Heartbeats, Inbox, Limited, Seen
from tests.support.recorded import replay_epochs

pytestmark = [pytest.mark.spark, pytest.mark.slow("queries whose epochs run again for each recording")]
FIRST = 1_700_000_000_000


def environment(spark: SparkSession, parallelism: int = 2) -> Any:
    return StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)


def payments(inbox: Inbox, epoch: int, count: int = 40) -> None:
    inbox.put(*((f"c{number % 7}", number % 5, FIRST + 60_000 * epoch + number) for number in range(count)))


@pytest.mark.long("twelve epochs run again; test_record.py shows the rest")
def test_unions_and_broadcasts_over_a_compaction_of_the_log_of_files(spark: SparkSession, tmp_path: Path) -> None:
    inboxes = {name: Inbox(tmp_path / name) for name in ("one", "two", "limits")}
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")

    def writer() -> Any:
        env = environment(spark)
        first, second, limits = (
            env.from_dataframe(inbox.read(spark), name).assign_timestamps_and_watermarks(times)
            for name, inbox in inboxes.items()
        )
        limited = first.union(second).key_by("card").connect(limits.broadcast(Limited.LIMITS)).process(Limited())
        seen = limited.uid("limited").key_by("card").process(Seen()).uid("seen")
        return seen.to_dataframe("card STRING, n LONG").writeStream.format("noop")

    checkpoint = str(tmp_path / "checkpoint")
    # The log of a source is compacted after each tenth epoch.
    query = pillarbox.start(writer().option("checkpointLocation", checkpoint))
    try:
        for epoch in range(13):
            for name, inbox in inboxes.items():
                if name != "limits" or epoch % 3 == 0:
                    payments(inbox, epoch, 20)
            query.processAllAvailable()
    finally:
        query.stop()
    assert list((tmp_path / "checkpoint" / "sources" / "0").glob("*.compact"))
    tasks = [("limited", 0), ("seen", 1)]
    assert replay_epochs(writer(), checkpoint, tasks, tmp_path, newest=6) >= 10


@pytest.mark.long("a dozen epochs run again; runtime/recording replays such timers without Spark")
def test_processing_time_timers_and_a_source_without_files(spark: SparkSession, tmp_path: Path) -> None:
    def writer() -> Any:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 300).load()
        beats = environment(spark).from_dataframe(rows).key_by(lambda row: row.value % 5)
        late = beats.process(Heartbeats(), processing_time=True).uid("beats")
        return late.to_dataframe("key LONG, at LONG").writeStream.format("noop")

    checkpoint = str(tmp_path / "checkpoint")
    query = pillarbox.start(writer().option("checkpointLocation", checkpoint))
    with_rows: list[int] = []
    try:
        while len(with_rows) < 4:
            assert query.isActive, query.exception()
            query.awaitTermination(1)
            with_rows = [progress.batchId for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()
    # Between them are epochs with only timers, or without work.
    tasks = [("beats", 0), ("beats", 1)]
    assert replay_epochs(writer(), checkpoint, tasks, tmp_path, epochs=with_rows[-2:]) == 4


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Any, Inbox, str]]:
    inbox, checkpoint = Inbox(tmp_path / "payments"), str(tmp_path / "checkpoint")
    seen = environment(spark).from_dataframe(inbox.read(spark)).key_by("card").process(Seen()).uid("seen")
    writer = seen.to_dataframe("card STRING, n LONG").writeStream.format("noop")
    query = pillarbox.start(writer.option("checkpointLocation", checkpoint))
    payments(inbox, 0)
    query.processAllAvailable()
    yield query, inbox, checkpoint
    query.stop()


@pytest.mark.long("test_record.py records; the next test does so in a running query")
def test_the_driver_of_a_running_query_records(
    spark: SparkSession, running: tuple[Any, Inbox, str], tmp_path: Path
) -> None:
    query, inbox, checkpoint = running
    messages: list[str] = []
    request_record(spark, checkpoint, str(tmp_path / "c3"), timeout=60, notify=messages.append, uid="seen", key="c3")
    recording = read_recording(tmp_path / "c3")
    assert (recording.facts.epoch, recording.facts.uid) == (0, "seen")
    assert replay(recording, diff=True).state == []
    assert messages == ["waiting for the query's driver to accept the request", "the driver accepted the request"]
    # The driver's message reports the problem; the query continues.
    with pytest.raises(pillarbox.ConfigurationError, match="exists: pass a new directory"):
        request_record(spark, checkpoint, str(tmp_path / "c3"), timeout=60, uid="seen", key="c3")
    payments(inbox, 1)
    query.processAllAvailable()
    assert query.isActive


@pytest.mark.usefixtures("one_attempt")
def test_a_failure_is_recorded_before_it_is_raised(
    running: tuple[Any, Inbox, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query, inbox, _ = running
    inbox.put(("c3", 1, FIRST), ("c3", -5, FIRST))
    with caplog.at_level(logging.WARNING, "pillarbox"), pytest.raises(StreamingQueryException, match="an amount of -5"):
        pillarbox.run(query, recordings=str(tmp_path / "recordings"))
    (folder,) = (tmp_path / "recordings").iterdir()
    result = replay(read_recording(folder), diff=True)
    assert result.is_same
    assert result.failure is not None
    assert result.failure.key == "'c3'"
    assert not [record for record in caplog.records if "could not be recorded" in record.message]


@pytest.mark.long("runtime/recording compares programs without Spark")
def test_the_command_compares_the_next_version(
    spark: SparkSession, running: tuple[Any, Inbox, str], tmp_path: Path
) -> None:
    from pillarbox_tools.cli.all_commands import commands

    query, inbox, checkpoint = running
    payments(inbox, 1)
    query.processAllAvailable()
    request_record(spark, checkpoint, str(tmp_path / "c3"), timeout=60, uid="seen", key="c3")
    script = tmp_path / "next.py"
    script.write_text(
        "import sys\n"
        "import pillarbox\n"
        "from pathlib import Path\n"
        "from pyspark.sql import SparkSession\n"
        "from tests.spark.recording.program import Inbox, Seen, SeenTwice\n"
        "spark = SparkSession.active()\n"
        "rows = spark.readStream.schema('card STRING, amount LONG, at LONG').json(sys.argv[1])\n"
        "env = pillarbox.StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)\n"
        "function = Seen() if sys.argv[2] == 'same' else SeenTwice()\n"
        "seen = env.from_dataframe(rows).key_by('card').process(function).uid('seen')\n"
        "pillarbox.start(seen.to_dataframe('card STRING, n LONG').writeStream.format('noop'))\n"
    )
    arguments = ["replay", str(tmp_path / "c3"), "--program", str(script), str(tmp_path / "payments")]
    done = CliRunner().invoke(commands, [*arguments, "same"])
    assert (done.exit_code, "both programs agree" in done.output) == (0, True), done.output
    done = CliRunner().invoke(commands, [*arguments, "other"])
    assert done.exit_code == 1
    assert "The first difference is at record 1" in done.output
    assert "output, recorded program: " in done.output
    assert "output, other program: " in done.output
