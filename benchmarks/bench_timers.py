# SPDX-License-Identifier: Apache-2.0
"""What timers cost: registered, moved and fired per second, beside asyncio's and beside a heap with lazy deletion.

Each of 200,000 keys registers a timer, in random order; then each moves its own: deletes it and registers another; then
time goes on in 60 steps, and all fire. Once with times spread over an hour by the millisecond, so that hardly two are
equal, and once at full minutes, as the ends of windows are.

  pillarbox     the internal timer service over keyed state: a timer is part of its key's row, without duplicates,
                and marks the row as one that the epoch has to write
  asyncio       ``loop.call_at``, ``handle.cancel`` with a dictionary of handles by key, and a loop whose clock is set
  heapq         a heap of (time, key), and a set of those that are live: what is deleted stays in the heap

and, to know what users see, of no weight in the ratio: ``register_event_time_timer`` and so on in a
``KeyedProcessFunction``, under the test harness of its operator, with a record for each of the calls.

All in one process, in alternating rounds, with the garbage collector off while the clock runs; what counts is the
median. Each round's results are checked: all timers that were not deleted, each once, in the order of time.

Run it with ``make bench-timers`` or ``python benchmarks/bench_timers.py``. The last line of the output is one JSON
object; ``ratio`` is operations per second of pillarbox over those of asyncio, of both kinds of times the lower;
``heapq_ratio`` the same over heapq.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox, finish, print_table, spread

find_pillarbox()

import numpy as np

from pillarbox import KeyedProcessFunction
from pillarbox._state import HeapKeyedStateBackend
from pillarbox._time import ManualProcessingTimeService, ProcessingTimeServiceImpl
from pillarbox._time.internal_timer_service import VOID_NAMESPACE, InternalTimeServiceManager
from pillarbox.testing import harness_for

MINUTE = 60_000
HOUR = 60 * MINUTE
STEPS = 60
TIMES = {"spread": "by the millisecond", "minutes": "at full minutes"}
PHASES = ("register", "move", "fire")
Fired = list[tuple[int, int]]


class Work:
    """The keys in the order in which they register and move, and the times."""

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
        in_order = all(one[0] <= other[0] for one, other in pairwise(fired))
        return in_order and sorted(fired) == self.expected


class Phases:
    """Stops the time of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


# -- pillarbox --


class Record:
    """The operator that is called."""

    def __init__(self, backend: HeapKeyedStateBackend, fired: Fired) -> None:
        self.backend = backend
        self.fired = fired

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self.fired.append((timestamp, self.backend.key))

    def flush(self) -> None:
        pass

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        raise AssertionError("no such timers")


def service(work: Work, fired: Fired) -> Phases:
    backend = HeapKeyedStateBackend("timers")
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


class Timers(KeyedProcessFunction):
    """Does what its records say."""

    def __init__(self, fired: Fired) -> None:
        self.fired = fired

    def process_element(self, record, ctx):
        timers = ctx.timer_service()
        if len(record) == 3:
            timers.delete_event_time_timer(record[1])
        timers.register_event_time_timer(record[-1])

    def on_timer(self, timestamp, ctx):
        self.fired.append((timestamp, ctx.get_current_key()))


def function(work: Work, fired: Fired) -> Phases:
    with harness_for(Timers(fired), key_by=lambda record: record[0]) as harness:
        phases = Phases()
        harness.push_all(work.register)
        phases.done("register")
        harness.push_all(work.move)
        phases.done("move")
        for now in work.steps:
            harness.push_watermark(now)
        phases.done("fire")
    return phases


# -- the others --


class SetLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is set, in milliseconds."""

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
    "(function)": function,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    arguments = parser.parse_args()
    keys = arguments.keys
    operations = {"register": keys, "move": 2 * keys, "fire": keys}
    wrong: list[str] = []
    rates: dict[str, dict[str, list[float]]] = {}
    for times, words in TIMES.items():
        work = Work(keys, times)
        seconds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for index in range(-1, arguments.rounds):
            # Alternating, and every other round backwards, so that neither gains by its place.
            for side in list(SIDES) if index % 2 else reversed(list(SIDES)):
                fired: Fired = []
                gc.collect()
                gc.disable()
                said = SIDES[side](work, fired).seconds
                gc.enable()
                if not work.agrees(fired):
                    wrong.append(f"{side}, {words}, round {index}: {len(fired):,} timers")
                if index >= 0:  # the round before that warms up
                    seconds[side].append(said)
        rates[times] = {side: [4 * keys / sum(each.values()) for each in all_] for side, all_ in seconds.items()}
        print_table(
            [f"timers {words}", "operations/s", "lowest", "highest", *(f"{phase}, ns" for phase in PHASES)],
            [
                [
                    side,
                    *spread(rates[times][side]),
                    *(
                        f"{statistics.median(each[phase] for each in all_) / operations[phase] * 1e9:,.0f}"
                        for phase in PHASES
                    ),
                ]
                for side, all_ in seconds.items()
            ],
        )
        print()
    medians = {
        times: {side: statistics.median(values) for side, values in said.items()} for times, said in rates.items()
    }
    over = {
        yardstick: {times: said["pillarbox"] / said[yardstick] for times, said in medians.items()}
        for yardstick in ("asyncio", "heapq")
    }
    for yardstick, ratios in over.items():
        print(
            f"pillarbox over {yardstick}: "
            + ", ".join(f"{ratio:.2f} {TIMES[times]}" for times, ratio in ratios.items())
        )
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "timers",
        min(over["asyncio"].values()),
        results_agree=not wrong,
        heapq_ratio=round(min(over["heapq"].values()), 3),
        ratios={
            yardstick: {times: round(ratio, 3) for times, ratio in ratios.items()} for yardstick, ratios in over.items()
        },
        operations_per_s={
            times: {side: round(value) for side, value in said.items()} for times, said in medians.items()
        },
        keys=keys,
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
