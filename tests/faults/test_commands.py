"""Killed ``pillarbox`` commands. A repeated command completes the work. Reading commands do not change the checkpoint.

Every test run kills ``state --output`` once. With ``PILLARBOX_LONG``, commands are killed at each of their Spark jobs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError
from pillarbox._state.savepoint.files import LocalSavepoint
from tests.faults.processes import START_SECONDS, kill, start_python, wait_for
from tests.faults.programs.savepoint_job import writer

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

KEYS = 7
# The number of Spark jobs at which a command is killed, at most.
POINTS = 4
# A job's entry in the event log.
JOB = '"Event":"SparkListenerJobStart"'


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Home:
    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.log = folder / "log"
        self.events = folder / "events"
        (folder / "in").mkdir()
        self.run()

    def run(self) -> None:
        rows = [{"key": number % KEYS, "at": 100 * number} for number in range(10 * KEYS)]
        (self.folder / "in" / "part.json").write_text("\n".join(map(json.dumps, rows)))
        pillarbox.start(writer(self.spark, self.folder, start=None)).awaitTermination()

    def begin(self, *arguments: str) -> Any:
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.events, ignore_errors=True)
        self.events.mkdir()
        conf = {
            "spark.driver.memory": "1g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return start_python(self.log, "-m", "pillarbox", *arguments, "--master", "local[2]", *settings)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def jobs(self) -> int:
        return sum(path.read_text(errors="replace").count(JOB) for path in self.events.iterdir() if path.is_file())

    def has_begun(self, jobs: int) -> bool:
        return self.jobs() >= jobs

    def do(self, *arguments: str) -> str:
        process = self.begin(*arguments)
        try:
            assert process.wait(START_SECONDS) == 0, self.said()[-4000:]
        finally:
            kill(process.pid, "all")
        return self.said()

    def killed(self, when: Callable[[], bool], *arguments: str) -> None:
        process = self.begin(*arguments)
        try:
            wait_for(when, process, lambda: self.said()[-4000:])
        finally:
            kill(process.pid, "all")
            process.wait()


@pytest.fixture
def home(spark: Any, tmp_path: Path) -> Home:
    return Home(spark, tmp_path)


@pytest.mark.long("a JVM for each command")
def test_state_is_killed_while_it_writes(home: Home) -> None:
    before, rows = digests(home.checkpoint), home.folder / "rows"
    # Each row takes a minute: who is killed now is in the middle.
    slowly = "reflect('java.lang.Thread', 'sleep', 60000L) IS NULL"
    command = ["state", str(home.checkpoint), "count", "--output", str(rows)]
    home.killed((rows / "_temporary").exists, *command, "--where", slowly)
    assert digests(home.checkpoint) == before
    assert not list(rows.glob("*.parquet"))
    assert f"{rows}: {KEYS} rows" in home.do(*command)
    assert home.spark.read.parquet(str(rows)).count() == KEYS
    assert sorted(path.name for path in rows.glob("_*")) == ["_SUCCESS"]
    assert digests(home.checkpoint) == before


# -- all over their runs --

long = pytest.mark.long("a JVM for each command")


def sweep(home: Home, command_for: Callable[[str], list[str]], check: Callable[[str, bool], bool]) -> None:
    """Kill a command at Spark jobs throughout its run, and repeat it after each kill.

    Args:
        command_for: returns the command line for a folder.
        check: called after each kill, and with True after the command has completed. Returns whether all work is done.
    """
    home.do(*command_for("first"))
    count = home.jobs()
    assert check("first", True)
    assert count >= 2
    points = min(POINTS, count)
    for point in range(points):
        jobs = 1 + point * (count - 1) // (points - 1)
        name = f"killed at {jobs}"
        command = command_for(name)
        home.killed(partial(home.has_begun, jobs), *command)
        if not check(name, False):
            home.do(*command)
            assert check(name, True)


@long
@pytest.mark.parametrize("command", [["inspect"], ["state"], ["state", "--output"]], ids=" ".join)
def test_reading_commands_are_killed(home: Home, command: list[str]) -> None:
    before = digests(home.checkpoint)
    name, *output = command
    uid = ["count"] if name == "state" else []

    def command_for(folder: str) -> list[str]:
        return [name, str(home.checkpoint), *uid, *output, *([str(home.folder / folder)] if output else [])]

    def check(folder: str, is_done: bool) -> bool:
        assert digests(home.checkpoint) == before
        rows = home.folder / folder
        is_whole = (rows / "_SUCCESS").exists() and not (rows / "_pillarbox_begun").exists()
        if output and (is_done or is_whole):
            assert is_whole and home.spark.read.parquet(str(rows)).count() == KEYS
        return is_done or is_whole

    sweep(home, command_for, check)


@long
def test_the_writing_of_a_savepoint_is_killed(home: Home) -> None:
    before, other = digests(home.checkpoint), home.folder / "other"
    halves = []

    def check(name: str, is_done: bool) -> bool:
        assert digests(home.checkpoint) == before
        try:
            savepoint = LocalSavepoint(home.folder / name)
        except CheckpointMismatchError as error:
            assert not is_done and ("was begun, and not completed" in str(error) or "is no savepoint" in str(error))
            halves.append(name)
            return False
        assert sum(batch.num_rows for batch in savepoint.batches("count")) == KEYS
        return True

    sweep(home, lambda name: ["savepoint", str(home.checkpoint), str(home.folder / name)], check)
    assert halves
    # A folder that is not an incomplete savepoint is left alone.
    other.mkdir()
    (other / "mine").write_text("mine")
    process = home.begin("savepoint", str(home.checkpoint), str(other))
    assert process.wait(START_SECONDS) == 1 and "contains other files" in home.said()
    assert digests(other) == {"mine": hashlib.sha256(b"mine").hexdigest()}


def asked(home: Home, kind: str) -> list[Any]:
    folder = home.checkpoint / "pillarbox" / "requests"
    lines = [json.loads(path.read_text()) for path in folder.glob("*.txt")]
    return [line[kind] for line in lines if kind in line]


def wait_until(what: Callable[[], bool]) -> None:
    patience = time.monotonic() + START_SECONDS
    while not what():
        assert time.monotonic() < patience
        time.sleep(0.02)


@long
def test_the_command_that_stops_a_query_is_killed(home: Home) -> None:
    """A repeated command continues its earlier request, or finds it done. Later starts of the query ignore it."""

    def start() -> Any:
        before = len(asked(home, "over"))
        query = pillarbox.start(
            writer(home.spark, home.folder, start=None).trigger(processingTime="1 second"),
        )
        if asked(home, "request"):
            wait_until(lambda: len(asked(home, "over")) > before)
        return query

    def stop(name: str) -> list[str]:
        return ["savepoint", str(home.checkpoint), str(home.folder / name), "--stop"]

    query = start()
    home.killed(lambda: bool(asked(home, "request")), *stop("first"))
    assert "waiting for an earlier command that requested it" in home.do(*stop("first"))
    query.awaitTermination()
    assert len(asked(home, "request")) == len(asked(home, "taken")) == len(asked(home, "answer")) == 1
    assert sum(batch.num_rows for batch in LocalSavepoint(home.folder / "first").batches("count")) == KEYS
    assert "an earlier command has already done it" in home.do(*stop("first"))
    # The query runs again, and ends. Then no driver accepts the request, and the command is killed.
    start().stop()
    home.killed(lambda: len(asked(home, "request")) == 2, *stop("second"))
    # A different request at the same time is refused.
    process = home.begin(*stop("second"), "--drain")
    assert process.wait(START_SECONDS) == 1 and "is under way, so nothing was requested" in home.said()
    query = start()
    assert query.isActive and len(asked(home, "taken")) == 1
    home.do(*stop("second"))
    query.awaitTermination()
    assert len(asked(home, "request")) == 3 and len(asked(home, "taken")) == 2
    assert sum(batch.num_rows for batch in LocalSavepoint(home.folder / "second").batches("count")) == KEYS
