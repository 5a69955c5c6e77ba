"""Kills home processes that record calls. A request whose answer a function has used is not repeated."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, OperatorError, ValueStateDescriptor
from tests.homes.conftest import Executor
from tests.runtime.spark_of_dicts import keyed_query

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]
KILLS = 100 if "PILLARBOX_LONG" in os.environ else 3
RECORDS = 6


class Pay(KeyedProcessFunction[int, int, Any]):
    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def note(self, *words: object) -> None:
        file = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{' '.join(map(str, words))}\n".encode())
        os.close(file)

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    async def charge(self, value: int, *, idempotency_key: str) -> str:
        self.note("charge", idempotency_key, value)
        await asyncio.sleep(random.random() / 50)
        return idempotency_key

    async def process_element(self, value: int, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        for _ in range(3):
            self.note("use", await ctx.call(self.charge, value), value)
            await asyncio.sleep(random.random() / 100)
        yield value, self.seen.value()


@pytest.mark.slow("homes that are killed in the middle of epochs")
@pytest.mark.parametrize("on_barrier", ["drain", "carry"])
def test_no_used_answer_is_asked_for_again(executor: Executor, tmp_path: Path, on_barrier: str) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    query = keyed_query(Pay(notes), 1, 2, on_barrier=on_barrier, journal=str(tmp_path / "journal"))
    rng = random.Random(1)
    out: list[Any] = []
    killed = 0

    def kill() -> None:
        nonlocal killed
        for pid in executor.homes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1

    epoch, batches = 0, list[list[int]]()
    while killed < KILLS or len(out) < RECORDS * len(batches):
        batch = [RECORDS * epoch + number for number in range(RECORDS)] if killed < KILLS else []
        batches += [batch] if batch else []
        for attempt in range(10):
            timer = threading.Timer(rng.random() / 8, kill) if killed < KILLS and attempt < 5 else None
            if timer is not None:
                timer.start()
            try:
                out += query.run_batch(batch)
                break
            except OperatorError:
                pass  # Spark runs the epoch again
            finally:
                if timer is not None:
                    timer.cancel()
                    timer.join()
        else:
            pytest.fail("an epoch failed ten times")
        epoch += 1
    assert sorted(out) == [(value, 1) for batch in batches for value in batch]
    used: set[str] = set()
    payments = defaultdict(set)
    for what, key, value in map(str.split, notes.read_text().splitlines()):
        if what == "use":
            used.add(key)
        else:
            assert key not in used, f"payment {key} for {value} is made again"
            payments[value].add(key)
    assert len(payments) == len(out)
    assert {len(keys) for keys in payments.values()} == {3}
