"""Fixtures with a fake executor, without Spark. Its home processes serve workers in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox._runtime.spark.homes import relay, sockets, starter_connection
from pillarbox._runtime.spark.homes.starter_connection import StarterConnection
from tests.homes.forks import SECRET, Forks


class Executor:
    def __init__(self) -> None:
        code = "import sys; sys.stdin.read()"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        # The process stands for the daemon, too.
        self.keeper = StarterConnection(self.process.pid, self.process.pid)

    @property
    def starter(self) -> int:
        return self.keeper._started[-1].pid

    @property
    def processes(self) -> set[int]:
        results = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, _, group, _ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z" and int(group) in {process.pid for process in self.keeper._started}:
                results.add(int(pid))
        return results

    @property
    def homes(self) -> set[int]:
        return self.processes - {process.pid for process in self.keeper._started}

    def home(self, task: str = "a", run: str = "run", **fields: Any) -> dict[str, Any]:
        arguments = {"query": "query", "secret": "s", "epoch": 0, "mode": "fork", "most": 9, "idle": 99.0, "without": 0}
        return self.keeper.ask("home", place=task, run=run, **{**arguments, **fields})

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, forks: Forks) -> Iterator[Executor]:
    executor = Executor()
    monkeypatch.setattr(sockets, "secret", SECRET.encode)
    monkeypatch.setattr(starter_connection, "start_python", forks.start_python)
    for module in (starter_connection, relay):
        monkeypatch.setattr(module, "of_this_worker", lambda: executor.keeper)
    yield executor
    executor.end()
    wait_until(lambda: not executor.processes)
    executor.keeper.disconnect()


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.01)
