from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, OperatorError, ValueStateDescriptor
from pillarbox._runtime.spark.homes import relay
from tests.homes.conftest import Executor, wait_until
from tests.homes.test_homes import Attempts, buffers_of
from tests.runtime.spark_of_dicts import Query, keyed_query

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]
# Seconds that a relay keeps its home waiting for a frame.
SILENT = 2.0


class Sleep(KeyedProcessFunction[int, int, Any]):
    """Sleeps for a record's value, in units of 10 ms. At a negative value, hangs until its home process ends."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def note(self, *words: object) -> None:
        with self.notes.open("a") as file:
            file.write(f"{' '.join(map(str, words))}\n")

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    async def process_element(self, value: int, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        if value < 0:
            self.note("hangs", os.getpid())
            await asyncio.Event().wait()
        for _ in range(value):
            began = time.monotonic()
            await asyncio.sleep(0.01)
            self.note("late", time.monotonic() - began - 0.01)
        self.note("ended", time.monotonic())
        yield value, self.seen.value(), os.getpid()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.note("closed")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def noted(notes: Path, what: str) -> list[float]:
    lines = [line.split() for line in notes.read_text().splitlines()]
    return [float(words[1]) if len(words) > 1 else 0.0 for words in lines if words[0] == what]


def sleeping(notes: Path, **options: Any) -> Query:
    return keyed_query(Sleep(notes), 1, 2, **options)


@pytest.mark.slow("the relay keeps its home waiting for two seconds")
def test_a_relay_that_waits_for_a_frame_delays_no_answer(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_AHEAD_BYTES", 0)  # the home begins before the relay has all its input
    query = sleeping(notes)
    query.run_batch([0])
    resumed = []

    def frames() -> Iterator[list[tuple[Any, ...]]]:
        first, *rest = buffers_of(query, [20])
        yield [first]
        time.sleep(SILENT)
        resumed.append(time.monotonic())
        yield rest

    _, out = Attempts(query, monkeypatch).begin(1000, frames())
    list(out)
    assert noted(notes, "ended")[-1] < resumed[0]
    assert median(noted(notes, "late")) < 0.02


def test_a_home_that_is_ended_while_its_loop_waits_closes_its_function(
    executor: Executor, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = sleeping(notes)
    query.run_batch([0])
    _, out = Attempts(query, monkeypatch).begin(1000, iter([buffers_of(query, [-1])]))
    errors: list[BaseException] = []

    def take() -> None:
        try:
            list(out)
        except OperatorError as error:
            errors.append(error)

    relaying = threading.Thread(target=take, daemon=True)
    relaying.start()
    wait_until(lambda: bool(noted(notes, "hangs")))
    os.kill(int(noted(notes, "hangs")[0]), signal.SIGTERM)
    wait_until(lambda: bool(noted(notes, "closed")))
    # The relay fails, or if its home has ended before it could answer, repeats the epoch in another one.
    wait_until(lambda: bool(errors) or len(noted(notes, "hangs")) == 2)


def test_records_are_carried_from_epoch_to_epoch(executor: Executor, notes: Path) -> None:
    query = sleeping(notes, on_barrier="carry")
    out = query.run_batch([60, 1])
    epochs = 1
    while len(out) < 2:
        out += query.run_batch([])
        epochs += 1
    assert sorted(row[:2] for row in out) == [(1, 1), (60, 1)]
    assert len({row[2] for row in out}) == 1
    assert epochs > 1


def test_carried_records_go_on_between_epochs(executor: Executor, notes: Path) -> None:
    query = sleeping(notes, on_barrier="carry")
    assert query.run_batch([50, 51]) == []
    wait_until(lambda: len(noted(notes, "ended")) == 2)
    assert sorted(row[:2] for row in query.run_batch([])) == [(50, 1), (51, 1)]
