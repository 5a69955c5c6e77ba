"""The driver dies, with all that belongs to it or in part; started again, it goes on from its checkpoint.

It is for `make test-all`, which sets ``PILLARBOX_LONG``: the seed of ``test_chaos.py`` kills a driver as well.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.faults.oracles.oracle import answer
from tests.faults.programs.job import FileSink, make_events, write_fixed_epochs

pytestmark = [
    pytest.mark.fault,
    pytest.mark.long("a driver per fault; chaos kills drivers, too"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

ROOT = Path(__file__).parents[2]
EPOCHS = 4
KILLS = 1  # more of them in `make chaos`
START_SECONDS = 400


def members(session: int) -> dict[int, str]:
    """Give the processes of a session, with the names of their programs. Spark's daemon of Python workers leaves the
    driver's process group, but not its session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            state, _, _, member_of = rest.split()[:4]
            if int(member_of) == session and state != "Z":
                found[int(path.parent.name)] = name
    return found


def start_python(log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process of Python's in a session of its own, which finds the tests, and writes behind what a log has."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill(session: int, victim: str) -> None:
    """Kill what ``victim`` says of a driver's processes; the others have a while to see it and end by themselves."""
    for process, name in members(session).items():
        wanted = victim == "all" or (victim == "jvm" and name == "java") or (victim == "driver" and process == session)
        if wanted:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    patience = time.monotonic() + 20
    while members(session) and time.monotonic() < patience:
        time.sleep(0.1)
    while left := members(session):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def wait_for(what: Callable[[], object], process: subprocess.Popen[bytes], log: Callable[[], str]) -> None:
    """Wait for what a process does, or for all that it has done when it ends."""
    patience = time.monotonic() + START_SECONDS
    while True:
        has_ended = process.poll() is not None
        if what():
            return
        assert not has_ended, log()
        assert time.monotonic() < patience, log()
        time.sleep(0.002)


def start(home: Path, log: Path, epochs: int) -> subprocess.Popen[bytes]:
    # The state log is cleaned in nearly every epoch.
    return start_python(log, "-m", "tests.faults.driver", str(home), str(epochs), PILLARBOX_FAULT_SMALL_LOG="1")


def _has(sink: FileSink, batches: int) -> bool:
    return len(sink.batches()) >= batches


def test_the_driver_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    epochs = make_events(seed, epochs=EPOCHS)
    right = answer(epochs)
    write_fixed_epochs(epochs, tmp_path / "in.parquet")
    (tmp_path / "faults").mkdir()
    sink = FileSink(tmp_path / "out")
    log = tmp_path / "log"
    kills = 0
    # One that is to be killed does not end by itself, however fast it is: its source has no end.
    driver = start(tmp_path, log, sys.maxsize)
    try:
        while kills < KILLS:
            # A moment within a few batches from here; the sharp ones are around a batch's end.
            until = len(sink.batches()) + rng.choice([1, 1, 2, 3])
            moment = rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 2)])
            victim = rng.choice(["all", "all", "jvm", "driver"])
            if until > EPOCHS:
                break
            wait_for(partial(_has, sink, until), driver, lambda: log.read_text()[-4000:])
            time.sleep(moment)
            assert driver.poll() is None, log.read_text()[-4000:]
            print(f"kill {kills}: {victim}, {moment:.2f} s after batch {sink.batches()[-1:]}")
            kill(driver.pid, victim)
            driver.wait()
            kills += 1
            last = max(len(epochs), len(sink.batches()) + 1)
            driver = start(tmp_path, log, sys.maxsize if kills < KILLS else last)
        driver.wait(timeout=400)
    finally:
        kill(driver.pid, "all")
        driver.wait()
    assert (tmp_path / "done").exists(), log.read_text()[-4000:]
    assert kills > 0
    # The source has no end: there may be epochs without events behind the last.
    output = sink.output()
    assert sorted(output)[: len(epochs)] == sorted(right.output)
    for batch, rows in [*output.items(), *sink.earlier()]:
        expected = right.output.get(batch, [])
        extra = [row for row in rows if row not in expected]
        missing = [row for row in expected if row not in rows]
        assert not extra and not missing, f"batch {batch}: too much {extra[:5]}, missing {missing[:5]}"
        assert rows == expected, f"batch {batch}: rows came more than once"
