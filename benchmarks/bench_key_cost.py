# SPDX-License-Identifier: Apache-2.0
"""What a key costs: bytes of memory in the worker, and bytes written to the state log, for some kinds of state.

300,000 keys are filled in a process of their own for each kind; memory is what the process's resident memory has grown
by once the epoch has been written.

Run it with ``make bench-key-cost`` or ``python benchmarks/bench_key_cost.py`` (Linux: it reads /proc). The last line of
the output is one JSON object; ``kinds`` has the bytes of memory and those written for each kind of state, ``ratio`` is
memory over bytes written for the first of them.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox, finish, print_table

find_pillarbox()

from pillarbox._state import (
    HeapKeyedStateBackend,
    ListStateDescriptor,
    LogIdentity,
    MapStateDescriptor,
    MemoryChunkStore,
    StateDescriptor,
    StateLog,
    ValueStateDescriptor,
)
from pillarbox._time import ManualProcessingTimeService
from pillarbox._time.internal_timer_service import InternalTimerService

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


def measure(name: str, keys: int, answer: Connection) -> None:
    """Fill keys, in a process of its own."""
    descriptor, fill, timer = KINDS[name]
    gc.collect()
    before = resident()
    backend = HeapKeyedStateBackend("op")
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
    answer.send({"memory": (resident() - before) // keys, "written": written // keys})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=300_000)
    keys = parser.parse_args().keys
    context = multiprocessing.get_context("fork")
    kinds: dict[str, dict[str, int]] = {}
    for name in KINDS:
        result, answer = context.Pipe(duplex=False)
        process = context.Process(target=measure, args=(name, keys, answer))
        process.start()
        answer.close()
        kinds[name] = result.recv()
        process.join()
    print_table(
        ["a key of 10 characters with", "bytes of memory", "bytes written"],
        [[name, f"{said['memory']:,}", f"{said['written']:,}"] for name, said in kinds.items()],
    )
    first = next(iter(kinds.values()))
    finish("key_cost", first["memory"] / first["written"], kinds=kinds, keys=keys)


if __name__ == "__main__":
    main()
