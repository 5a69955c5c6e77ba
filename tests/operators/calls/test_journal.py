"""The journal of recorded calls. Answers outlive a failed epoch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pillarbox import CALL_AGAIN, ConfigurationError, ProgramError, RuntimeExecutionMode, StreamExecutionEnvironment
from pillarbox._operators.calls.journal import Journal
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import _patience
from tests.operators.async_keyed.gates import BAD, opened, settle
from tests.operators.calls.services import Calling, Service


@pytest.fixture
def service() -> Service:
    return Service()


def calling(service: Service, journal: Path, run: Any, **options: Any) -> Harness:
    return opened(Calling(service, run), journal=str(journal), **options)


def files(journal: Path) -> list[Path]:
    # Unlike rglob(), os.walk() ignores a folder that the journal's thread removes at the same time.
    return sorted(Path(folder) / name for folder, _, names in os.walk(journal) for name in names)


def await_that(harness: Harness, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)
        settle(harness)


def open_gates(harness: Harness, service: Service, *names: Any) -> None:
    for name in names:
        await_that(harness, lambda name=name: name in service.gate._futures)  # type: ignore[misc]
        service.gate.open(harness, name)


async def two_calls(service: Service, value: Any, ctx: Any) -> Any:
    first = await ctx.call(service.charge, value[1])
    await ctx.call(service.ask, ("second", value[0]))
    yield first


@pytest.mark.parametrize("on_barrier", ["drain", "carry"])
def test_answers_of_a_failed_epoch_are_used_again(service: Service, tmp_path: Path, on_barrier: str) -> None:
    with calling(service, tmp_path, two_calls, on_barrier=on_barrier) as harness:
        before = harness.snapshot()
        harness.push_all([("a", 1), ("b", 2)])
        open_gates(harness, service, 1, 2)
        await_that(harness, lambda: len(service.calls) == 4)  # an answer is used after it is written
        assert {path.parent.name for path in files(tmp_path)} == {"2"}
    service.restart()
    with calling(service, tmp_path, two_calls, on_barrier=on_barrier, snapshot=before) as harness:
        harness.push_all([("c", 3), ("b", 2), ("a", 1)])
        open_gates(harness, service, 3, ("second", "b"), ("second", "a"), ("second", "c"))
        harness.drain()
        assert sorted(harness.get_output())[:2] == [("answer to 1", 2), ("answer to 2", 3)]
        harness.snapshot()
        harness.notify_of_completed_checkpoint(2)
        await_that(harness, lambda: not files(tmp_path))
    assert sorted(map(len, service.charged.values())) == [1, 1, 1]


def test_records_that_arrive_during_a_write_are_in_one_file(service: Service, tmp_path: Path) -> None:
    with calling(service, tmp_path, two_calls) as harness:
        harness.push_all([(key, 1) for key in "abcdefgh"])
        await_that(harness, lambda: len(service.calls) == 8)
        open_gates(harness, service, 1)
        await_that(harness, lambda: len(service.calls) == 16)
    assert len(files(tmp_path)) == 1


def test_a_carried_element_keeps_the_answer_that_is_being_written(service: Service, tmp_path: Path) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.charge, value[1])

    is_over = threading.Event()
    with (
        patch.object(Journal, "_put", side_effect=lambda *_: is_over.wait()),
        patch.object(_patience, "_WRITES", 0.0),
        calling(service, tmp_path, run, on_barrier="carry") as harness,
    ):
        harness.push(("a", 1))
        open_gates(harness, service, 1)
        snapshot = harness.snapshot()
        assert harness.get_output() == []
        is_over.set()
    service.restart()
    with calling(service, tmp_path / "other", run, on_barrier="carry", snapshot=snapshot) as harness:
        harness.drain()
        assert harness.get_output() == [("answer to 1", 1)]
    assert service.calls == [1]


def test_carried_elements_use_the_journal_of_the_epoch_of_their_arrival(service: Service, tmp_path: Path) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        if service.calls:
            await service.gate("before")
        yield await ctx.call(service.charge, value[1])
        await service.gate("after")

    def started(snapshot: Any) -> Harness:
        service.restart()
        return calling(service, tmp_path, run, on_barrier="carry", snapshot=snapshot)

    with started(None) as harness:
        snapshot = harness.snapshot()
        harness.push(("a", 1))
        open_gates(harness, service, 1)
        await_that(harness, lambda: "after" in service.gate.waiting)
    for _ in range(3):
        with started(snapshot) as harness:
            if not harness.operator.is_unfinished:
                harness.push(("a", 1))
            snapshot = harness.snapshot()
            harness.notify_of_completed_checkpoint(2)
            await_that(harness, lambda: not files(tmp_path))
    with started(snapshot) as harness:
        open_gates(harness, service, "before", "after")
        harness.drain()
        assert harness.get_output() == [("answer to 1", 1)]
        assert harness.snapshot().chunks
    assert service.calls == [1]


def test_a_call_that_was_begun_in_a_failed_epoch_is_reconciled(service: Service, tmp_path: Path) -> None:
    def find(idempotency_key: str, name: Any) -> Any:
        return "found" if name == 1 else CALL_AGAIN

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.charge, value[1], reconcile=find)

    with calling(service, tmp_path, run) as harness:
        before = harness.snapshot()
        harness.push_all([("a", 1), ("b", 2)])
        await_that(harness, lambda: len(service.calls) == 2)
    service.restart()
    with calling(service, tmp_path, run, snapshot=before) as harness:
        harness.push_all([("a", 1), ("b", 2), ("c", 1)])
        open_gates(harness, service, 1, 2)
        harness.drain()
        assert sorted(map(str, harness.get_output())) == ["('answer to 1', 4)", "('answer to 2', 4)", "found"]
    assert service.counts == {1: 2, 2: 2}


def test_a_file_that_is_incomplete_is_ignored(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with calling(service, tmp_path, two_calls) as harness:
        before = harness.snapshot()
        harness.push(("a", 1))
        open_gates(harness, service, 1)
        await_that(harness, lambda: len(service.calls) == 2)
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    service.restart()
    with calling(service, tmp_path, two_calls, snapshot=before) as harness:
        harness.push(("a", 1))
        await_that(harness, lambda: service.calls[2:] == [1])
    assert f"the journal file {path} is incomplete and will be ignored" in caplog.text


def test_a_journal_that_cannot_be_used_fails_the_task(service: Service, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        calling(service, tmp_path / "file", two_calls, on_error=BAD) as harness,
        pytest.raises(
            ConfigurationError, match=r"'Calling' cannot \w+ the journal '.*/file': .* check the folder, and pya"
        ),
    ):
        harness.push(("a", 1))
        open_gates(harness, service, 1)
        await_that(harness, lambda: len(service.calls) == 2)
    with calling(service, "nothing://x", two_calls) as harness, pytest.raises(ConfigurationError, match="nothing://x"):  # type: ignore[arg-type]
        harness.push(("a", 1))
        harness.drain()


def test_batch_mode_has_no_journal(service: Service, tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    stream = env.from_collection([("a", 1)]).key_by(lambda pair: pair[0])
    with pytest.raises(ProgramError, match="batch mode never repeats an epoch, so drop journal="):
        stream.process(Calling(service, two_calls), journal=str(tmp_path)).execute_and_collect()
    with pytest.raises(ProgramError, match="journal= must be a folder"):
        stream.process(Calling(service, two_calls), journal="")
