from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import ConfigurationError
from pillarbox._runtime.spark.homes.processes import OsProcess
from pillarbox._runtime.spark.running import heartbeat, other_driver, progress_reader, query_command
from pillarbox._runtime.spark.running.heartbeat import Heartbeat, heartbeat_files, newest_heartbeat
from pillarbox._runtime.spark.running.requests import Requests
from pillarbox._runtime.spark.session.queries import new_progress
from pillarbox._runtime.spark.starting.started import find
from pillarbox_tools import entry
from pillarbox_tools.watching.following import watched_query
from tests.see.queries import Inbox, counts


def writer(spark: SparkSession, inbox: Inbox, checkpoint: Path) -> Any:
    frame = counts(spark, inbox).to_dataframe("card STRING, seen LONG")
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


@pytest.mark.slow("a driver looks for requests every five seconds")
def test_a_second_driver_is_refused_and_takes_over_if_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, checkpoint = Inbox(tmp_path / "in"), tmp_path / "checkpoint"
    inbox.put(("a", 1, 1))
    first = pillarbox.start(writer(spark, inbox, checkpoint))
    first.processAllAvailable()
    files = heartbeat_files(spark, str(checkpoint))
    assert files is not None
    while not files.read():
        time.sleep(0.05)
    # Another process seems to ask: this one is the driver, which is alive.
    me = heartbeat.this_process()
    monkeypatch.setattr(other_driver, "this_process", lambda: (me[0], me[1] + 1, 0))
    with pytest.raises(ConfigurationError, match=rf"process {os.getpid()} on .* was running this query"):
        pillarbox.start(writer(spark, inbox, checkpoint))
    assert first.isActive
    second = pillarbox.start(writer(spark, inbox, checkpoint), take_over=True)
    assert (first.isActive, second.isActive) == (False, True)
    second.stop()
    second.awaitTermination()
    assert newest_heartbeat(spark, str(checkpoint)) is None


def test_a_driver_that_was_killed_is_no_obstacle(spark: SparkSession, tmp_path: Path) -> None:
    inbox, checkpoint = Inbox(tmp_path / "in"), tmp_path / "checkpoint"
    inbox.put(("a", 1, 1))
    other = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"])
    start = OsProcess.of(other.pid).start
    beat = Heartbeat(time.time_ns() // 1_000_000, "run-of-another", heartbeat.this_process()[0], other.pid, start)
    files = heartbeat_files(spark, str(checkpoint))
    assert files is not None
    files.write(beat)
    try:
        with pytest.raises(ConfigurationError, match=f"process {other.pid} on "):
            pillarbox.start(writer(spark, inbox, checkpoint))
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    query = pillarbox.start(writer(spark, inbox, checkpoint))
    query.processAllAvailable()
    query.stop()
    query.awaitTermination()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_driver_that_does_not_stop_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    inbox, checkpoint = Inbox(tmp_path / "in"), tmp_path / "checkpoint"
    inbox.put(("a", 1, 1))
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"c1b3ef2d-4b8a-4b31-9f14-6c4e3b1c1d5a"}')
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        other.send_signal(signal.SIGSTOP)
        host = heartbeat.this_process()[0] if is_here else "elsewhere"
        now, start = time.time_ns() // 1_000_000, OsProcess.of(other.pid).start
        for at in (now, now + 1):  # it beats
            files = heartbeat_files(spark, str(checkpoint))
            assert files is not None
            files.write(Heartbeat(at, "run-of-another", host, other.pid, start))
        monkeypatch.setattr(other_driver, "NEXT_BEAT", 0.1)
        monkeypatch.setattr(other_driver, "_STOPPING", 0.1)
        monkeypatch.setattr(other_driver, "_LEAVING", 0.1)
        monkeypatch.setattr(query_command, "_LOOK_EVERY", 0.1)
        driver = f"process {other.pid} on {host}"
        with pytest.raises(ConfigurationError, match=f"{driver} runs this query, and did not .*: end {driver}, and"):
            pillarbox.start(writer(spark, inbox, checkpoint), take_over=True)
    finally:
        other.kill()
        other.wait()
    assert not (checkpoint / "offsets").exists(), "nothing was started"
    desired = Requests(spark, str(checkpoint)).lines().desired
    assert desired.state == "running", "a driver that wakes up later runs on"


def test_a_heartbeat_of_an_earlier_process_with_the_same_pid_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    host, process, start = heartbeat.this_process()
    files = heartbeat_files(spark, str(tmp_path))
    assert files is not None
    files.write(Heartbeat(time.time_ns() // 1_000_000, "run-of-another", host, process, start - 1))
    other_driver.check_no_other_driver(spark, str(tmp_path), take_over=False)
    assert not files.read()


def test_a_driver_of_another_machine_is_judged_by_its_next_heartbeat(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_driver, "_LOOK_EVERY", 0.01)
    files, now = heartbeat_files(spark, str(tmp_path)), time.time_ns() // 1_000_000
    assert files is not None
    beat = Heartbeat(now, "run-of-another", "elsewhere", 7, 7)
    files.write(beat)
    monkeypatch.setattr(other_driver, "NEXT_BEAT", 0.05)
    assert not other_driver._is_alive(files, beat, "here"), "it is silent"
    monkeypatch.setattr(other_driver, "NEXT_BEAT", 60)
    monkeypatch.setattr(files, "names_of", lambda beat: [f"{now + 1:013d}-run-of-a.json"])
    assert other_driver._is_alive(files, beat, "here")
    monkeypatch.setattr(files, "names_of", lambda beat: [])
    assert not other_driver._is_alive(files, beat, "here"), "its query has ended"


def test_one_error_at_a_look_is_not_the_end_of_a_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(tmp_path / "in")
    inbox.put(("a", 1, 1))
    query = pillarbox.start(writer(spark, inbox, tmp_path / "checkpoint"))
    query.processAllAvailable()
    real, failed = new_progress, threading.Event()

    def once(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise ConnectionError("the connection was lost for a moment")
        return real(*arguments)

    monkeypatch.setattr(progress_reader, "new_progress", once)
    assert failed.wait(60)
    inbox.put(("a", 1, 1))
    query.processAllAvailable()
    watched = watched_query(query, "the test")
    last = query.lastProgress
    assert last is not None
    while (newest := watched.snapshot().newest) is None or newest.number < last["batchId"]:
        time.sleep(0.05)
    assert watched.snapshot().run.status == "running"
    query.stop()
    query.awaitTermination()
    assert watched.snapshot().run.status == "stopped"
    assert [record.getMessage() for record in caplog.records if "will be read again" in record.getMessage()] != []


def test_a_hook_that_hangs_holds_up_neither_the_query_nor_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never, hung = threading.Event(), threading.Event()

    def hangs(*arguments: Any) -> None:
        hung.set()
        never.wait()

    monkeypatch.setattr(entry, "on_progress", hangs)
    inbox = Inbox(tmp_path / "in")
    inbox.put(("a", 1, 1))
    try:
        query = pillarbox.start(writer(spark, inbox, tmp_path / "checkpoint").trigger(availableNow=True))
        query.awaitTermination()
        assert hung.is_set() and query.exception() is None
        assert "did not finish within 5 seconds after the query's end" in caplog.text
        started = find(query)
        assert started is not None and started.is_closed, "its functions are closed"
    finally:
        never.set()


def test_an_error_of_a_hook_is_logged_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fails(*arguments: Any) -> None:
        calls.append(1)
        raise ValueError("the tools have a defect")

    monkeypatch.setattr(entry, "on_progress", fails)
    inbox = Inbox(tmp_path / "in")
    inbox.put(("a", 1, 1))
    query = pillarbox.start(writer(spark, inbox, tmp_path / "checkpoint"))
    while len(calls) < 2:
        time.sleep(0.05)
    query.stop()
    query.awaitTermination()
    warnings = [record for record in caplog.records if "the tools have a defect" in record.getMessage()]
    assert [warning.levelname for warning in warnings].count("WARNING") == 1
