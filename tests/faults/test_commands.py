"""A command is killed with all that belongs to it: then the same command again does all of it, and the checkpoint is as
it was, file by file. (``test_chain.py`` kills those that write savepoints, ``test_rescale.py`` changes of parallelism.)
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from tests.faults.savepoint_job import writer
from tests.faults.test_driver import START_SECONDS, kill, start_python

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

KEYS = 7


def digests(folder: Path) -> dict[str, str]:
    """Return what is in a folder, file by file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Home:
    """A folder with a query that has stopped; commands run on its checkpoint."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.log = folder / "log"
        (folder / "in").mkdir()
        self.run()

    def run(self) -> None:
        """Give each key ten records, and run the query to their end."""
        rows = [{"key": number % KEYS, "at": 100 * number} for number in range(10 * KEYS)]
        (self.folder / "in" / "part.json").write_text("\n".join(map(json.dumps, rows)))
        pillarbox.start(writer(self.spark, self.folder, start=None)).awaitTermination()

    def begin(self, *arguments: str) -> Any:
        self.log.unlink(missing_ok=True)
        settings = ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
        return start_python(self.log, "-m", "pillarbox", *arguments, *settings)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def do(self, *arguments: str) -> str:
        """Carry out a command; return what it has said."""
        process = self.begin(*arguments)
        try:
            assert process.wait(START_SECONDS) == 0, self.said()[-4000:]
        finally:
            kill(process.pid, "all")
        return self.said()

    def killed(self, when: Callable[[], bool], *arguments: str) -> None:
        """Kill a command as soon as something has happened."""
        process = self.begin(*arguments)
        try:
            patience = time.monotonic() + START_SECONDS
            while not when():
                assert process.poll() is None and time.monotonic() < patience, self.said()[-4000:]
                time.sleep(0.002)
        finally:
            kill(process.pid, "all")
            process.wait()


@pytest.fixture
def home(spark: Any, tmp_path: Path) -> Home:
    return Home(spark, tmp_path)


def test_state_is_killed_while_it_writes(home: Home) -> None:
    """The half folder is no hindrance to the same command, but any other is; and a reader of it finds nothing."""
    before, rows = digests(home.checkpoint), home.folder / "rows"
    # Each row takes a minute: who is killed now is in the middle.
    slowly = "reflect('java.lang.Thread', 'sleep', 60000L) IS NULL"
    command = ["state", str(home.checkpoint), "count", "--output", str(rows)]
    home.killed((rows / "_temporary").exists, *command, "--where", slowly)
    assert digests(home.checkpoint) == before
    assert not list(rows.glob("*.parquet"))
    assert f"{KEYS} rows in {rows}" in home.do(*command)
    assert home.spark.read.parquet(str(rows)).count() == KEYS
    assert sorted(path.name for path in rows.glob("_*")) == ["_SUCCESS"]
    assert digests(home.checkpoint) == before
