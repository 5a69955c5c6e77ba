"""Runs queries in home processes, with random faults: ``python -m tests.homes.chaos --seed 7 --faults 200``.

Each of two sessions has two queries, and a daemon, whose workers run the queries' epochs. A query has three state
partitions, whose home processes count records by key. Each epoch's results are compared with the query's committed
state. A fault kills or pauses a process, removes sockets, or slows down Spark's state. In the end, no process or file
may be left. The last line of output is a JSON object.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.imports import import_and_freeze
from pillarbox._runtime.spark.homes.settings import MOST
from tests.homes.chaos.tree import Process, executor, members, receive, send
from tests.runtime import spark_of_dicts
from tests.runtime.spark_of_dicts import Query, keyed_query

SESSIONS, QUERIES, PARTITIONS = 2, 2, 3
# How much longer than its fault an epoch may take, and how long after a fault of a starter alone (seconds).
LATE, LATE_OF_STARTER = 15.0, 5.0
KINDS = (
    *("kill starter", "stop starter", "kill home", "stop home", "kill worker", "stop worker"),
    *("kill daemon", "kill executor", "refuse", "slow"),
)


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield value, seen


_queries: dict[str, Query] = {}


def query_of(name: str, run: str, most: int) -> Query:
    if run not in _queries:
        _queries[run] = keyed_query(Count(), PARTITIONS, run=run, query=name, settings={MOST: str(most)})
    return _queries[run]


def work(arguments: Any) -> Any:
    name, run, most, attempt, state, rows, slow = arguments
    query = query_of(name, run, most)
    spark_of_dicts._attempts = count(attempt)
    if state is not None:
        query.handles = state
    get = spark_of_dicts.MapState.getValue
    if slow:

        def slowly(chunks: Any, key: Any) -> Any:
            time.sleep(slow)
            return get(chunks, key)

        spark_of_dicts.MapState.getValue = slowly  # type: ignore[assignment, method-assign]
    try:
        out = query.run_batch(rows)
    finally:
        spark_of_dicts.MapState.getValue = get  # type: ignore[method-assign]
    return out, query.handles


class Cluster:
    """The executor with its daemons and workers. Restarts processes that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.executors: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._executor = executor(work)
        self.executors.append(self._executor.pid)
        self._daemons: dict[int, Process] = {}

    @property
    def pid(self) -> int:
        return self._executor.pid

    def worker(self, session: int) -> Process:
        with self._lock:
            while True:
                if session not in self._daemons:
                    self._daemons[session] = self._executor.fork("daemon")
                try:
                    return self._daemons[session].fork("worker")
                except (OSError, EOFError):
                    del self._daemons[session]

    def begin_again(self) -> None:
        with self._lock:
            self._end()
            self._begin()

    def end(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._executor.kill()
        os.waitpid(self._executor.pid, 0)
        for process in (self._executor, *self._daemons.values()):
            process.connected.close()


class Running(threading.Thread):
    """A thread that runs a query. It repeats each epoch in random workers until the epoch succeeds."""

    attempts = count(0, 1000)

    def __init__(self, cluster: Cluster, session: int, number: int, most: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.label = f"query {session}.{number}"
        self._cluster, self._session, self._most = cluster, session, most
        self._random = random.Random(f"{seed} {self.label}")
        self._workers: list[Process] = []
        self._state: Any = None
        self._counted: Counter[int] = Counter()
        self.slow = 0.0
        self.wrong: list[str] = []
        self.failures: Counter[str] = Counter()
        self.last = ""
        self.epochs = 0
        self.is_over = False
        # The current epoch's start, and the longest duration since the last read (seconds).
        self.began = time.monotonic()
        self._longest = 0.0

    def is_stuck(self) -> bool:
        return time.monotonic() - self.began > 60

    def longest(self) -> float:
        longest, self._longest = max(self._longest, time.monotonic() - self.began), 0.0
        return longest

    def run(self) -> None:
        while not self.is_over:
            self.began = time.monotonic()
            rows = [self._random.randrange(12) for _ in range(self._random.randrange(1, 8))]
            out = self._epoch(rows)
            self._longest = max(self._longest, time.monotonic() - self.began)
            expected = []
            for row in rows:
                self._counted[row] += 1
                expected.append((row, self._counted[row]))
            if sorted(out) != sorted(expected):
                self.wrong.append(f"{self.label}, epoch {self.epochs}: {sorted(out)} instead of {sorted(expected)}")
            self.epochs += 1
            time.sleep(0.01)

    def _epoch(self, rows: list[int]) -> list[tuple[int, int]]:
        while True:
            try:
                while len(self._workers) < 2:
                    self._workers.append(self._cluster.worker(self._session))
            except (OSError, EOFError):
                continue  # the executor has just ended
            worker = self._random.choice(self._workers)
            try:
                header = (self.label, f"run of {self.label}", self._most, next(self.attempts))
                send(worker.connected, (*header, self._state, rows, self.slow))
                answer = receive(worker.connected)
            except (OSError, EOFError):
                self.failures["worker"] += 1
                worker.connected.close()
                self._workers.remove(worker)
                continue
            if isinstance(answer, str):
                self.failures[answer.partition(":")[0]] += 1
                self.last = answer
                continue
            out, self._state = answer
            return out  # type: ignore[no-any-return]


class Faults:
    def __init__(self, cluster: Cluster, queries: list[Running], rng: random.Random, stop: float) -> None:
        self._cluster, self._queries, self._random, self._stop = cluster, queries, rng, stop

    def happen(self, kind: str) -> float | None:
        if kind == "refuse":
            return self._refuse()
        if kind == "slow":
            query = self._random.choice(self._queries)
            query.slow = 0.5
            time.sleep(self._stop)
            query.slow = 0.0
            return self._stop
        if kind == "kill executor":
            self._cluster.begin_again()
            return 0.0
        how, _, what = kind.partition(" ")
        results = sorted(pid for pid, kind in members(self._cluster.pid).items() if kind == what)
        if not results:
            return None
        pid = self._random.choice(results)
        with suppress(ProcessLookupError):
            if how == "kill":
                os.killpg(pid, signal.SIGKILL) if what == "daemon" else os.kill(pid, signal.SIGKILL)
                return 0.0
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._stop)
            os.kill(pid, signal.SIGCONT)
        return self._stop

    def _refuse(self) -> float | None:
        name = sockets.executor_name(self._cluster.pid)
        folder = Path(sockets._address(""))
        results = sorted(path for path in folder.iterdir() if path.name.startswith(name) and "," not in path.name)
        if not results:
            return None
        with suppress(FileNotFoundError):
            self._random.choice(results).unlink()
        return 0.0


def run(seed: int, faults: int, stop: float, most: int) -> dict[str, Any]:
    rng = random.Random(seed)
    cluster = Cluster()
    queries = [Running(cluster, s, q, most, seed) for s in range(SESSIONS) for q in range(QUERIES)]
    for query in queries:
        query.start()
    happened: Counter[str] = Counter()
    late: list[str] = []
    worst: dict[str, float] = {}
    inflicted = Faults(cluster, queries, rng, stop)
    while sum(happened.values()) < faults and not any(query.wrong for query in queries):
        epochs = [query.epochs for query in queries]
        wait_for_epochs(cluster, queries, [epoch + 3 for epoch in epochs])
        for query in queries:
            query.longest()
        kind = rng.choice(KINDS)
        began = time.monotonic()
        lasted = inflicted.happen(kind)
        if lasted is None:
            continue
        happened[kind] += 1
        print(f"{sum(happened.values()):4} {kind:14}", end="", flush=True)
        epochs = [query.epochs for query in queries]
        wait_for_epochs(cluster, queries, [epoch + 1 for epoch in epochs])
        took = max(query.longest() for query in queries)
        # A starter that hangs is replaced, however long it would have hung.
        allowed = LATE_OF_STARTER if kind.endswith("starter") else lasted + LATE
        worst[kind] = max(worst.get(kind, 0.0), took - (0.0 if kind.endswith("starter") else lasted))
        if took > allowed:
            late.append(f"{kind}: an epoch took {took:.1f} s")
        print(
            f"{sum(happened.values()):4} {kind:14} {time.monotonic() - began:5.1f} s, epoch {took:5.1f} s", flush=True
        )
    for query in queries:
        query.is_over = True
    for query in queries:
        query.join(120)
    cluster.end()
    return {
        "seed": seed,
        "faults": dict(sorted(happened.items())),
        "epochs": sum(query.epochs for query in queries),
        "failures": dict(sum((query.failures for query in queries), Counter())),
        "worst_seconds": {kind: round(seconds, 1) for kind, seconds in sorted(worst.items())},
        "wrong": [finding for query in queries for finding in query.wrong],
        "late": late,
        "left": left_behind(cluster),
    }


def wait_for_epochs(cluster: Cluster, queries: list[Running], targets: list[int], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while any(query.epochs < target for query, target in zip(queries, targets)):
        if time.monotonic() > deadline:
            for pid in members(cluster.pid):
                os.kill(pid, signal.SIGUSR1)  # log its stack, for all threads
            stuck = [f"{query.label}: {dict(query.failures)} {query.last}" for query in queries if query.is_stuck()]
            raise TimeoutError(f"no epoch has ended for {within} s: {stuck}")
        time.sleep(0.01)


def left_behind(cluster: Cluster, within: float = 20.0) -> list[str]:
    deadline = time.monotonic() + within
    while True:
        left = [f"{kind} {pid}" for executor in cluster.executors for pid, kind in members(executor).items()]
        left = [name for name in left if not name.startswith(("worker", "daemon"))]  # Spark ends these
        names = tuple(f"{executor}-" for executor in cluster.executors)
        left += [name for name in os.listdir(sockets._address("")) if name.startswith(names) and is_in_use(name)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def is_in_use(name: str) -> bool:
    name, is_lock, _ = name.partition(",lock")
    file = sockets.lock(name) if is_lock else None
    if file is None:
        return True
    os.close(file)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="by default drawn by the clock")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--stop", type=float, default=30.0, help="for how long processes are stopped (seconds)")
    parser.add_argument("--most", type=int, default=8, help="homes of a query (spark.pillarbox.homes.max)")
    options = parser.parse_args(arguments)
    seed = time.time_ns() // 1000 % 10**6 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/tmp") as folder:
        tempfile.tempdir = folder
        import_and_freeze()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        result = run(seed, options.faults, options.stop, options.most)
    print(json.dumps(result), flush=True)
    return 1 if result["wrong"] or result["late"] or result["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
