"""Harnesses of async functions whose requests hang."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import AsyncFunction, KeyedProcessFunction, OutputTag
from pillarbox.testing import ProgramTestHarness, _patience, harness_for


class Never(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        if value == "now":
            return [value]
        await asyncio.sleep(3600)
        raise AssertionError

    def timeout(self, value: Any) -> list[Any]:
        return [("late", value)]


async def never(value: Any) -> Any:
    for _ in range(10):
        await asyncio.sleep(0)
    if value == "now":
        return value
    return await asyncio.sleep(3600)


def dropping(env: Any, a: Any) -> Any:
    return a.map_async(never, timeout="1 second", on_failure="drop", capacity=1)


@pytest.mark.parametrize("call", [lambda h: h.run_epoch(), lambda h: h.end_input(), lambda h: h.fail_epoch()])
def test_a_program_does_not_wait_for_ever(call):
    with ProgramTestHarness(dropping, limit=0.1) as h:
        h.push("a", 1)
        with pytest.raises(
            TimeoutError, match=r"'map_async: never' has waited 0.1 s for unfinished requests.*stands still at 0"
        ):
            call(h)


def test_a_timeout_fires_in_a_program():
    with ProgramTestHarness(dropping) as h:
        h.push("a", 1, "now", 2, "now", 3)
        assert h.run_epoch(time_passes=3000) == {"output": ["now", "now"]}
        assert h.processing_time_service.current_processing_time() == 3000
        h.push("a", 4)
        assert h.end_input(time_passes="1 second") == {"output": []}


def test_time_passes_in_an_epoch_that_fails():
    with ProgramTestHarness(dropping) as h:
        h.push("a", 1, "now")
        h.fail_epoch(time_passes=1000)
        assert h.run_epoch(time_passes=1000) == {"output": ["now"]}


def test_no_more_time_passes_than_was_said():
    with ProgramTestHarness(dropping, limit=0.1) as h:
        h.push("a", 1, 2)
        with pytest.raises(TimeoutError, match="stands still at 1999"):
            h.run_epoch(time_passes=1999)


def test_time_passes_where_nothing_waits():
    with ProgramTestHarness(dropping) as h:
        assert h.run_epoch(time_passes=500) == {"output": []}
        assert h.processing_time_service.current_processing_time() == 500


class Twice(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield value


def test_a_timeout_fires_behind_a_shuffle_and_in_a_chain():
    late = OutputTag("late")

    def build(env, a):
        asked = a.key_by(lambda value: 0).process(Twice()).map_async(never, timeout="1 second", on_failure=late)
        again = asked.map_async(never, timeout="9 seconds", on_failure="drop")
        return {"late": asked.get_side_output(late), "out": again}

    with ProgramTestHarness(build) as h:
        h.push("a", "x", "now")
        out = h.run_epoch(time_passes=1000)
        assert [failure.value for failure in out["late"]] == ["x", "x"]
        assert out["out"] == ["now", "now"]


def test_an_operator_harness_does_not_wait_for_ever():
    with harness_for(Never(), limit=0.1) as h:
        h.push("a")
        for call in (h.snapshot, h.end_input):
            with pytest.raises(TimeoutError, match=r"'Never' has waited 0.1 s for unfinished requests"):
                call()


def test_a_timeout_fires_in_an_operator_harness():
    with harness_for(Never()) as h:
        h.push_all(["a", "now"])
        h.snapshot(time_passes="5 seconds")
        assert h.get_output() == [("late", "a"), "now"]
        assert h.get_processing_time() == 5000
        h.push("b")
        h.end_input(time_passes="5 seconds")
        assert h.get_output()[2:] == [("late", "b")]


FULL = threading.Event()


async def held(value):
    while value >= 3 and not FULL.is_set():
        await asyncio.sleep(0)
    return value


async def hang(value):
    FULL.set()
    await asyncio.sleep(3600)


def test_time_passes_though_an_operator_before_has_mail():
    FULL.clear()

    def build(env, a):
        return a.map_async(held, timeout=None).map_async(hang, timeout="1 second", on_failure="drop", capacity=1)

    with ProgramTestHarness(build) as h:
        h.push("a", *range(6))
        assert h.run_epoch(time_passes=6000) == {"output": []}
        assert h.processing_time_service.current_processing_time() == 6000


async def soon(value):
    await asyncio.sleep(0.01)
    return value


def test_results_that_arrive_at_the_limit_count(monkeypatch):
    monkeypatch.setattr(_patience, "_REAL", 60.0)
    with ProgramTestHarness(lambda env, a: a.map_async(soon, timeout=None), limit=0.0) as h:
        h.push("a", 1)
        assert h.run_epoch(time_passes=10) == {"output": [1]}


def test_a_full_operator_does_not_wait_for_ever():
    with harness_for(Never(), limit=0.1) as h, pytest.raises(TimeoutError, match=r"has waited 0.1 s"):
        h.push_all(range(500))
