# SPDX-License-Identifier: Apache-2.0
"""The cost of a key: bytes of memory in the worker, and bytes written to the state log, for some kinds of state.

For each kind, a new process fills 300,000 keys. Memory is the growth of the process's resident memory until the epoch
has been written.

Requires Linux, because it reads /proc. In the last line, ``kinds`` has the bytes of memory and the bytes written for
each kind of state. ``ratio`` is memory divided by bytes written, for the first kind.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.case import Block, Outcome, Result, Results
from benchmarks.harness.process import Side
from benchmarks.harness.turns import table
from benchmarks.report.words import page, paragraph
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService

SMALL = {"keys": 30_000}
Fill = Callable[[Any, int], None]

KINDS: dict[str, tuple[StateDescriptor, Fill, bool]] = {
    "a number": (ValueStateDescriptor("s"), lambda state, n: state.update(n + 10**6), False),
    "a number, and an event-time timer": (ValueStateDescriptor("s"), lambda state, n: state.update(n + 10**6), True),
    "a tuple of int and float": (ValueStateDescriptor("s"), lambda state, n: state.update((n, 1.5 * n)), False),
    "a list of 5 floats": (
        ListStateDescriptor("s"),
        lambda state, n: state.update([n + i / 2 for i in range(5)]),
        False,
    ),
    "a map of 5 entries": (
        MapStateDescriptor("s"),
        lambda state, n: state.put_all({f"k{n}{i}": n + i for i in range(5)}),
        False,
    ),
    "a string of 1,000 characters": (ValueStateDescriptor("s"), lambda state, n: state.update(f"{n:01000d}"), False),
}


class _NoTimers:
    def on_event_time(self, timestamp: int, namespace: Any) -> None: ...

    on_processing_time = on_event_time

    def flush(self) -> None: ...


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Keys:
    """A side that fills keys once."""

    def fill(self, name: str, keys: int) -> dict[str, int]:
        """Fill keys with a kind of state. Returns the bytes per key, in memory and written."""
        descriptor, fill, timer = KINDS[name]
        gc.collect()
        before = resident()
        backend = KeyedStateBackend("op")
        timers = InternalTimerService("timers", backend, ManualProcessingTimeService(), _NoTimers())
        state = backend.get_state(descriptor)
        backend.seal()
        log, store = StateLog(LogIdentity("op", 0, 1, 128), backend), MemoryChunkStore()
        log.sync(store)
        for n in range(keys):
            backend.set_current_key(f"card{n:06d}")
            fill(state, n)
            if timer:
                timers.event_timers.register(10**12 + n)
        log.commit(store, {})
        written = log.state_bytes
        store.chunks.clear()
        gc.collect()
        return {"memory": (resident() - before) // keys, "written": written // keys}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=300_000)


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    kinds: dict[str, dict[str, int]] = {}
    for name in KINDS:
        side = Side(Keys)
        kinds[name] = side.ask("fill", name=name, keys=arguments.keys)
        side.close()
    first = next(iter(kinds.values()))
    return Outcome("key_cost", first["memory"] / first["written"], {"kinds": kinds, "keys": arguments.keys})


def present(result: Result, charts: Path | None) -> str:
    rows = [[what, f"{bytes_of['memory']:,}", f"{bytes_of['written']:,}"] for what, bytes_of in result["kinds"].items()]
    return table(["a key of 10 characters with", "bytes of memory", "bytes written"], rows)


def in_words(results: Results) -> str:
    """Return a sentence on a key's memory."""
    sentences = [
        "The memory for a key depends on its state. For example, a numeric key with two values and an event-time timer"
        f" takes {results['state']['memory_bytes_per_key']:,} bytes of the worker's memory (`make bench-state`)."
    ]
    if "key-cost" not in results:
        return paragraph(*sentences, "`make bench-key-cost` measures other kinds of state.")
    sentences.append("`make bench-key-cost` measures some kinds of state:")
    return page(paragraph(*sentences), present(results["key-cost"], None))


BLOCKS = {"memory of a key": Block(in_words, ("state",))}
