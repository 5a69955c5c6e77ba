from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import SavepointError
from pillarbox._runtime.spark.running import ending
from pillarbox._runtime.spark.running.stop import _Stop
from pillarbox._runtime.spark.starting.started import StartedQuery


def query(**what: Any) -> Any:
    calm = {"id": "q", "isActive": True, "status": {"isTriggerActive": False}, "lastProgress": None}
    result = SimpleNamespace(**{**calm, "exception": lambda: None, **what})
    result.stop = lambda: setattr(result, "isActive", False)
    return result


def stop(query: Any, timeout: float = 60.0) -> _Stop:
    start: Any = SimpleNamespace(spark=None, checkpoint="cp")
    return _Stop(StartedQuery(query, start), time.monotonic() + timeout)


@pytest.mark.parametrize("fails", ["before", "when it is stopped"])
def test_a_query_that_fails_is_stopped_and_has_no_savepoint(fails: str) -> None:
    result = query(isActive=fails != "before", exception=lambda: RuntimeError("the disk is full"))
    with pytest.raises(SavepointError) as caught:
        stop(result).run("/savepoint", drain=False)
    assert not result.isActive
    assert str(caught.value) == (
        "checkpoint cp: the query failed before it could be stopped: RuntimeError: the disk is full. The query is"
        " stopped, and no savepoint was written. The next start repeats that epoch, and continues; 'pillarbox savepoint"
        " cp DIR' writes a savepoint of the last committed epoch"
    )


def test_a_query_whose_epoch_does_not_end_in_time_still_runs() -> None:
    result = query(status={"isTriggerActive": True})
    with pytest.raises(SavepointError, match=r"the running epoch did not end within the timeout\. The query is"):
        stop(result, timeout=0.0).run("/savepoint", drain=True)
    assert result.isActive


def test_a_query_that_is_held_has_not_ended_yet() -> None:
    """Its watcher continues to beat, so no other driver starts."""
    result = query(isActive=False)
    start: Any = SimpleNamespace(spark=None, checkpoint="cp")
    started = StartedQuery(result, start)
    started.await_end = lambda timeout: True
    with started.held():
        assert not started.has_ended(0.01)
    assert started.has_ended(0.01)


@pytest.mark.parametrize("ends", [True, False])
def test_the_functions_of_a_last_epoch_are_closed(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(ending, "close_started", closed.append)
    result = query(awaitTermination=lambda timeout: ends)
    start: Any = SimpleNamespace(spark=None, checkpoint="cp", one_batch=nullcontext, run=lambda: result)
    result._pillarbox_started = StartedQuery(result, start)
    assert ending.run_one_epoch(start, lambda: False) is (result if ends else None)
    assert closed == [result._pillarbox_started]


def test_spark_returns_early_when_a_query_ends() -> None:
    """``awaitTermination`` then reads the query state that pillarbox has changed in order to end the query."""
    result = query()
    start: Any = SimpleNamespace(spark=None, checkpoint="cp")
    started = StartedQuery(result, start)
    holds, returned = threading.Event(), threading.Event()

    def end() -> None:
        with started.held():
            holds.set()
            returned.wait()
            result.isActive = False

    def return_early(timeout: float) -> bool:
        returned.set()
        return False

    started.await_end = return_early
    assert not started.has_ended(60)
    returned.clear()
    thread = threading.Thread(target=end)
    thread.start()
    holds.wait()
    assert started.has_ended(60)
    thread.join()
