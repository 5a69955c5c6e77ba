# SPDX-License-Identifier: Apache-2.0
"""The cost of timers: registered, moved and fired per second, compared with asyncio and a heap with lazy deletion.

Each of 200,000 keys registers a timer, in random order. Then each key moves its timer (deletes it and registers
another). Then time advances in 60 steps, and all timers fire. One run has times spread over an hour in milliseconds, so
that hardly any two are equal. The other run has times at full minutes, like the ends of windows.

  pillarbox     the internal timer service over keyed state: a timer is part of its key's row, without duplicates,
                and marks the row as changed in the epoch
  asyncio       ``loop.call_at``, ``handle.cancel`` with a dictionary of handles by key, and a loop with a manual clock
  heapq         a heap of (time, key), and a set of live timers: deleted timers stay in the heap

All run in one process, in alternating rounds, without garbage collection during measurements. The results are medians.
Each round's timers are checked: all timers that were not deleted must fire once, in order of time.

In the last line, ``ratio`` is operations per second of pillarbox divided by asyncio's, the lower of both runs.
``heapq_ratio`` is the same for heapq.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.rows import HOUR, MINUTE
from benchmarks.harness.turns import medians, rounded, table, turns
from benchmarks.report.words import page
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.internal_timer_service import VOID_NAMESPACE, InternalTimeServiceManager
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl

STEPS = 60
TIMES = {"spread": "by the millisecond", "minutes": "at full minutes"}
PHASES = ("register", "move", "fire")
SMALL = {"keys": 20_000, "rounds": 3}
Fired = list[tuple[int, int]]


class Work:
    """The keys, in the order in which they register and move timers, and the timers' times."""

    def __init__(self, keys: int, times: str) -> None:
        random = np.random.default_rng(1)
        unit = MINUTE if times == "minutes" else 1
        at = [random.integers(1, HOUR, keys) // unit * unit + unit for _ in range(2)]
        order = [random.permutation(keys) for _ in range(2)]
        self.register = list(zip(order[0].tolist(), at[0][order[0]].tolist()))
        self.move = list(zip(order[1].tolist(), at[0][order[1]].tolist(), at[1][order[1]].tolist()))
        self.steps = [step * (HOUR + MINUTE) // STEPS for step in range(1, STEPS + 1)]
        self.expected = sorted((new, key) for key, _, new in self.move)

    def agrees(self, fired: Fired) -> bool:
        in_order = all(earlier[0] <= later[0] for earlier, later in pairwise(fired))
        return in_order and sorted(fired) == self.expected


class Phases:
    """Measures the duration of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


# -- pillarbox --


class Record:
    """The operator that timers call."""

    def __init__(self, backend: KeyedStateBackend, fired: Fired) -> None:
        self.backend = backend
        self.fired = fired

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self.fired.append((timestamp, self.backend.key))

    def flush(self) -> None:
        pass

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        raise AssertionError("no such timers")


def service(work: Work, fired: Fired) -> Phases:
    backend = KeyedStateBackend("timers")
    clock = ProcessingTimeServiceImpl(ManualProcessingTimeService(0), lambda callback, at: callback(at))
    manager = InternalTimeServiceManager(backend, clock)
    timers = manager.get_internal_timer_service("timers", Record(backend, fired))
    backend.seal()
    set_current_key = backend.set_current_key
    register, delete = timers.register_event_time_timer, timers.delete_event_time_timer
    phases = Phases()
    for key, at in work.register:
        set_current_key(key)
        register(VOID_NAMESPACE, at)
    phases.done("register")
    for key, old, new in work.move:
        set_current_key(key)
        delete(VOID_NAMESPACE, old)
        register(VOID_NAMESPACE, new)
    phases.done("move")
    for now in work.steps:
        manager.advance_watermark(now)
    phases.done("fire")
    return phases


# -- the others --


class SetLoop(asyncio.SelectorEventLoop):
    """A loop with a manual clock, in milliseconds."""

    now = 0

    def time(self) -> float:
        return self.now


def on_asyncio(work: Work, fired: Fired) -> Phases:
    loop = SetLoop()
    handles: dict[int, asyncio.TimerHandle] = {}

    def fire(at: int, key: int) -> None:
        del handles[key]
        fired.append((at, key))

    call_at = loop.call_at
    phases = Phases()
    for key, at in work.register:
        handles[key] = call_at(at, fire, at, key)
    phases.done("register")
    for key, _, new in work.move:
        handles[key].cancel()
        handles[key] = call_at(new, fire, new, key)
    phases.done("move")
    for now in work.steps:
        loop.now = now
        loop.call_soon(loop.stop)
        loop.run_forever()
    phases.done("fire")
    loop.close()
    return phases


def on_heap(work: Work, fired: Fired) -> Phases:
    heap: list[tuple[int, int]] = []
    live: set[tuple[int, int]] = set()

    def fire(at: int, key: int) -> None:
        fired.append((at, key))

    phases = Phases()
    for key, at in work.register:
        timer = at, key
        if timer not in live:
            live.add(timer)
            heappush(heap, timer)
    phases.done("register")
    for key, old, new in work.move:
        live.discard((old, key))
        timer = new, key
        if timer not in live:
            live.add(timer)
            heappush(heap, timer)
    phases.done("move")
    for now in work.steps:
        while heap and heap[0][0] <= now:
            timer = heappop(heap)
            if timer in live:
                live.discard(timer)
                fire(*timer)
    phases.done("fire")
    return phases


SIDES: dict[str, Callable[[Work, Fired], Phases]] = {
    "pillarbox": service,
    "asyncio": on_asyncio,
    "heapq": on_heap,
}
BLOCKS: dict[str, Block] = {}  # the mailbox's block also shows the timers


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    keys = arguments.keys
    operations = {"register": keys, "move": 2 * keys, "fire": keys}
    wrong: list[str] = []
    rates: dict[str, dict[str, float]] = {times: {} for times in TIMES}
    each_ns: dict[str, dict[str, Any]] = {times: {} for times in TIMES}
    for times, words in TIMES.items():
        work = Work(keys, times)
        seconds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for index, side in turns(SIDES, arguments.rounds):
            fired: Fired = []
            gc.collect()
            gc.disable()
            phases = SIDES[side](work, fired).seconds
            gc.enable()
            if not work.agrees(fired):
                wrong.append(f"{side}, {words}, round {index}: {len(fired):,} timers")
            if index >= 0:
                seconds[side].append(phases)
        for side, several in seconds.items():
            rates[times][side] = statistics.median(4 * keys / sum(phases.values()) for phases in several)
            middle = medians({phase: [phases[phase] for phases in several] for phase in PHASES})
            each_ns[times][side] = {phase: round(middle[phase] / operations[phase] * 1e9) for phase in PHASES}
    over = {
        yardstick: {times: rate["pillarbox"] / rate[yardstick] for times, rate in rates.items()}
        for yardstick in ("asyncio", "heapq")
    }
    figures = {
        "heapq_ratio": round(min(over["heapq"].values()), 3),
        "ratios": rounded(over, 3),
        "operations_per_s": rounded(rates),
        "ns_per_operation": each_ns,
        "keys": keys,
    }
    return Outcome("timers", min(over["asyncio"].values()), figures, wrong)


def present(result: Result, charts: Path | None) -> str:
    return page(
        *(
            table(
                [f"timers {TIMES[times]}", "operations a second", *(f"{phase}, ns" for phase in PHASES)],
                [
                    [side, f"{rate:,}", *result["ns_per_operation"][times][side].values()]
                    for side, rate in rates.items()
                ],
            )
            for times, rates in result["operations_per_s"].items()
        )
    )
