"""Starts on a checkpoint whose query another driver runs."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import ConfigurationError, SavepointError
from pillarbox._runtime.spark.homes.processes import OsProcess
from pillarbox._runtime.spark.running import heartbeat, other_driver
from pillarbox._runtime.spark.running.heartbeat import Heartbeat, HeartbeatFiles
from pillarbox._runtime.spark.running.other_driver import check_no_other_driver

NO_SPARK: Any = None


class Clock:
    now = 1000.0

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Files(HeartbeatFiles):
    """Heartbeats in memory: one, which is removed at ``ends``."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.ends = clock, float("inf")
        self.beat = Heartbeat(int(clock.now * 1000), "run-of-another", "here", 9, 7)

    def read(self) -> dict[str, Heartbeat]:
        return {"its": self.beat} if self.clock.now < self.ends else {}

    def names_of(self, beat: Heartbeat) -> list[str]:
        return [*self.read()]

    def forget(self, names: Any) -> None:
        assert not names


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    clock = Clock()
    files = Files(clock)
    for module in (heartbeat, other_driver):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(other_driver, "heartbeat_files", lambda spark, checkpoint: files)
    monkeypatch.setattr(other_driver, "this_process", lambda: ("here", 1, 1))
    monkeypatch.setattr(OsProcess, "has_ended", lambda process: False)

    def failed(spark: Any, checkpoint: str, *, timeout: float) -> None:
        raise SavepointError("the query failed before it could be stopped")

    monkeypatch.setattr(other_driver, "stop_query", failed)
    return files


def test_a_query_that_fails_while_it_is_asked_to_stop_is_taken_over(files: Files) -> None:
    files.ends = 1003.0
    check_no_other_driver(NO_SPARK, "cp", take_over=True)
    assert files.clock.now == 1003.0


def test_a_query_that_still_beats_is_not_taken_over(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="process 9 on here runs this query, and did not stop it when asked"):
        check_no_other_driver(NO_SPARK, "cp", take_over=True)
