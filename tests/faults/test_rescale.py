"""A query is stopped, spread over another number of partitions, and goes on: nothing is lost, doubled or changed.

The program is that of ``everything_job.py``, so all that a checkpoint can hold goes along. It takes minutes, so it is
for `make test-all`, which sets ``PILLARBOX_LONG``; `tests/versions` has a short way of the same program.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.faults.programs.everything_job import ROWS, SUBTASKS, UIDS, expected
from tests.faults.programs.job import FileSink, make_events
from tests.faults.test_driver import kill, start_python, wait_for

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(1800),
    pytest.mark.long("some minutes of queries; tests/versions has a short way of it"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
    pytest.mark.skipif(
        tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2), reason="Spark repartitions state from 4.2 on"
    ),
]


def check(found: Counter[Any], right: Counter[Any]) -> None:
    """Compare all that came out with what had to."""
    extra, missing = list((found - right).elements()), list((right - found).elements())
    assert not extra and not missing, (
        f"{len(extra)} rows too many, such as {extra[:5]}; {len(missing)} are missing, such as {missing[:5]}"
    )


class Place:
    """A folder with the program, which processes of their own operate."""

    def __init__(self, home: Path, seed: int, epochs: int) -> None:
        self.home = home
        self.epochs = make_events(seed, epochs=epochs)
        self.right = expected(self.epochs)
        shape = {"seed": seed, "epochs": epochs, "subtasks": SUBTASKS, "rows": self.right.total()}
        (home / "shape.json").write_text(json.dumps(shape))

    def begin(self, *orders: str) -> subprocess.Popen[bytes]:
        """Start a driver with these orders."""
        (self.home / "said").unlink(missing_ok=True)
        return start_python(self.home / "log", "-m", "tests.faults.programs.everything_job", str(self.home), *orders)

    def log(self) -> str:
        return (self.home / "log").read_text()[-6000:]

    def said(self) -> list[list[str]]:
        try:
            lines = (self.home / "said").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def newest(self, folder: str) -> int:
        """Return the newest number in a log of Spark's."""
        names = [path.name for path in (self.home / "checkpoint" / folder).iterdir()]
        return max(int(name) for name in names if name.isdigit())

    def do(self, *orders: str) -> None:
        """Carry out orders."""
        driver = self.begin(*orders)
        try:
            assert driver.wait(600) == 0, self.log()
        finally:
            kill(driver.pid, "all")

    def killed_in(self, *orders: str, after: float) -> bool:
        """Carry out orders, and kill the driver in the middle of the last one; return whether that is half done.

        Args:
            after: how long after its epoch was begun (seconds).
        """
        driver = self.begin(*orders)
        try:
            wait_for(lambda: self.said()[-1:] == [["begun", orders[-1]]], driver, self.log)
            before = self.newest("commits")
            while self.newest("offsets") == before and driver.poll() is None:
                time.sleep(0.01)
            time.sleep(after)
        finally:
            kill(driver.pid, "all")
            driver.wait()
        is_half = self.newest("commits") < self.newest("offsets")
        print(f"killed in {orders[-1]} after {after:.2f} s: {'half done' if is_half else 'it was done'}", flush=True)
        return is_half


def test_from_2_to_8_to_3_to_1_to_2_killed_in_the_middle_of_each(tmp_path, seed):
    rng = random.Random(seed)
    place = Place(tmp_path, seed, epochs=6)  # one for each run, and one that ends the stream
    assert {name for name, *_ in place.right} == ROWS, (
        "there is an operator that gives nothing: this test shows nothing of it"
    )
    print(f"{place.right.total()} rows to come, of {len(place.epochs)} epochs, and {len(UIDS)} operators with state")
    halves = 0
    parallelism, first = 2, ["run:2", "run:2"]
    for wanted in (8, 3, 1, 2):
        is_half = place.killed_in(*first, f"rescale:{wanted}", after=rng.choice([0, rng.uniform(0, 0.5)]))
        halves += is_half
        first = [f"refused:{wanted}"] * is_half + [f"rescale:{wanted}", f"run:{wanted}"]
        parallelism = wanted
    place.do(*first, f"finish:{parallelism}")
    assert halves > 0, "every change was done before the driver was killed: this run shows nothing of the middle"
    output = FileSink(tmp_path / "out").output()
    check(Counter(row for rows in output.values() for row in rows), place.right)
