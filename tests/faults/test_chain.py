"""From a savepoint to another parallelism, to the next savepoint, into this process, and back to Spark: with a kill -9
in the middle of each step. Nothing starts with half of one, the same command again completes it, and all that comes out
is what a query would give that never stopped.

The program is that of ``everything_job.py``: state of keys, windows, timers, joins, state with a time-to-live,
broadcast state and requests that are carried go along. It takes minutes, so it is for `make test-all`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._state.savepoint.files import LocalSavepoint
from tests.faults.programs.chain_job import found
from tests.faults.programs.everything_job import ROWS, expected
from tests.faults.programs.job import make_events
from tests.faults.test_driver import kill, start_python, wait_for
from tests.faults.test_rescale import check

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(1800),
    pytest.mark.long("some minutes of queries, one after the other"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

EPOCHS = 6  # and one that ends the stream
HALF = "was begun, and not completed: it has no manifest"
PATIENCE = 400  # seconds


class Home:
    """A folder with the chain, which processes of their own go through."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.right = expected(epochs := make_events(seed, epochs=EPOCHS))
        assert len(epochs) == EPOCHS + 1 and {name for name, *_ in self.right} == ROWS
        shape = {"seed": seed, "epochs": EPOCHS, "rows": self.right.total()}
        (folder / "shape.json").write_text(json.dumps(shape))
        self.halves: Counter[str] = Counter()

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of Python's."""
        (self.folder / "said").unlink(missing_ok=True)
        return start_python(self.folder / "log", *arguments)

    def orders(self, *orders: str) -> list[str]:
        return ["-m", "tests.faults.programs.chain_job", str(self.folder), *orders]

    def command(self) -> list[str]:
        """The command that writes the first savepoint."""
        checkpoint, directory = self.folder / "first" / "checkpoint", self.folder / "one"
        settings = ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
        return ["-m", "pillarbox", "savepoint", str(checkpoint), str(directory), *settings]

    def log(self) -> str:
        return (self.folder / "log").read_text()[-6000:]

    def do(self, *arguments: str) -> None:
        """Have a process do all of it."""
        process = self.begin(*arguments)
        try:
            assert process.wait(PATIENCE) == 0, self.log()
        finally:
            kill(process.pid, "all")

    def killed(self, step: str, when: Callable[[], object], *arguments: str, after: float = 0.0) -> None:
        """Kill a process as soon as it has come to a point, and so much later (seconds)."""
        process = self.begin(*arguments)
        try:
            wait_for(when, process, self.log)
            time.sleep(after)
        finally:
            kill(process.pid, "all")
            process.wait()
        print(f"killed: {step}", flush=True)

    def is_half(self, name: str) -> bool:
        """Tell whether a savepoint is half done; then nobody takes it for one."""
        directory = self.folder / name
        try:
            LocalSavepoint(directory)
        except CheckpointMismatchError as error:
            assert HALF in str(error)
        else:
            return False
        self.halves[name] += 1
        (self.folder / "why").write_text(HALF)
        return True

    def parts(self, name: str) -> int:
        """Return how many files with state there are of a savepoint that is being written."""
        # Folders go meanwhile.
        found = [files for place, _, files in os.walk(self.folder / name / "state") if "_temporary" not in place]
        return sum(file.endswith(".parquet") for files in found for file in files)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


def test_through_savepoints_to_5_tasks_into_this_process_and_back_killed_in_each_step(tmp_path, seed):
    rng = random.Random(seed)
    home = Home(tmp_path, seed)
    home.do(*home.orders("run:first:0", "run:first:1"))

    # The command, at the very beginning, while state is written, and before the manifest.
    home.killed("the command, at its beginning", lambda: home.has("one/started"), *home.command())
    home.killed("the command, in its data", lambda: home.parts("one") >= 3, *home.command(), after=rng.uniform(0, 1))
    assert home.is_half("one")
    home.do(*home.orders("refused:second"))
    assert not home.has("second/checkpoint")
    home.killed("the command, before its manifest", lambda: home.has("one/tasks/_SUCCESS"), *home.command())
    home.is_half("one")
    home.do(*home.command())

    # A start from it, in its first epoch.
    where = tmp_path / "second" / "checkpoint"
    begun = home.orders("run:second:2")
    home.killed("the first epoch", (where / "offsets" / "0").exists, *begun, after=rng.choice([0, 0.3, 1]))
    again = ["run:second:2"]
    if not (where / "commits" / "0").exists():
        home.halves["first epoch"] += 1
        (tmp_path / "why").write_text(
            "was interrupted: start the same program|was begun from the savepoint|no checkpoint"
        )
        again.insert(0, "refused:second")

    # It goes on, and is stopped with a savepoint.
    again.append("stop:second:3")
    home.killed("stopping", lambda: home.parts("two") >= 2, *home.orders(*again), after=rng.uniform(0, 1))
    stop = ["stop:second:3"]
    if home.is_half("two"):
        home.do(*home.orders(*stop))

    # In this process.
    for point in (f"table-{rng.randint(1, 12)}", f"digests-{rng.randint(1, 5)}"):
        process = home.begin(*home.orders(f"local:{point}:4"))
        assert process.wait(PATIENCE) == -9, home.log()
        assert home.is_half("three")
    home.do(*home.orders("local:never:4"))
    home.do(*home.orders("finish:back:5"))
    assert home.halves.keys() >= {"one", "two", "three"}, "a step was always done before it was killed"
    check(found(tmp_path), home.right)
