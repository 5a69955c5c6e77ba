# SPDX-License-Identifier: Apache-2.0
"""The cost of a home: processor time of a Spark task that sends four rows to a home process, or processes them itself.

A keyed program counts four rows per epoch in two state partitions. Spark is replaced with dictionaries, so nothing else
is measured. The sides:

  home      each partition has a home process; the worker is a relay
  worker    ``spark.pillarbox.homes=off``: tasks run in the worker

The sides run the same number of epochs, in turn, with every other round in reverse order. The user and system time of
this process, of the homes and of the starter are compared, per visit (a partition in an epoch). The results are
compared, too.

In the last line, ``ratio`` is the processor time of ``worker`` divided by the processor time of ``home``. ``visit_ms``
is the additional processor time of a visit (milliseconds), and ``wall_ms`` the additional wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.turns import medians, table, turns
from pillarbox import KeyedProcessFunction, ValueStateDescriptor

PARTITIONS = 2
ROWS = [1, 2, 3, 4]
SMALL = {"epochs": 100, "rounds": 2}
BLOCKS: dict[str, Block] = {}
TICK = os.sysconf("SC_CLK_TCK")


class Count(KeyedProcessFunction):
    """Counts a key's rows."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield value, seen, os.getpid()


def query(mode: str) -> Any:
    from tests.runtime.spark_of_dicts import keyed_query

    return keyed_query(Count(), PARTITIONS, run=mode, query=mode, settings={"spark.pillarbox.homes": mode})


def processor_s(pids: set[int]) -> float:
    """Return the processor time of these processes and of this process so far (seconds)."""
    total = 0
    for pid in {*pids, os.getpid()}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=400, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    from pillarbox._runtime.spark.homes import relay
    from pillarbox._runtime.spark.homes.starter_connection import StarterConnection
    from pillarbox._runtime.spark.worker import closing

    # Any live process can be the executor.
    executor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    keeper = StarterConnection(executor.pid, os.getpid())
    try:
        with (
            patch.object(relay, "of_this_worker", lambda: keeper),
            patch.object(closing, "of_this_worker", lambda: keeper),
        ):
            return measured(arguments, keeper)
    finally:
        executor.kill()
        executor.wait()


def measured(arguments: argparse.Namespace, keeper: Any) -> Outcome:
    queries = {"home": query("fork"), "worker": query("off")}
    epochs = dict.fromkeys(queries, 0)
    wrong: list[str] = []
    homes: set[int] = set()
    processor_ms: dict[str, list[float]] = {side: [] for side in queries}
    wall_ms: dict[str, list[float]] = {side: [] for side in queries}
    for number, side in turns(queries, arguments.rounds):
        pids = homes | {process.pid for process in keeper._started}
        began, wall = processor_s(pids), time.perf_counter()
        for _ in range(arguments.epochs):
            rows = queries[side].run_batch(ROWS)
            epochs[side] += 1
            if sorted(row[:2] for row in rows) != [(key, epochs[side]) for key in ROWS]:
                wrong.append(f"{side}: {rows}")
        homes |= {row[2] for row in rows} - {os.getpid()}
        if number >= 0:
            visits = arguments.epochs * PARTITIONS
            processor_ms[side].append((processor_s(pids) - began) * 1000 / visits)
            wall_ms[side].append((time.perf_counter() - wall) * 1000 / visits)
    cost, took = medians(processor_ms), medians(wall_ms)
    figures = {
        "visit_ms": round(cost["home"] - cost["worker"], 2),
        "processor_ms": {side: round(milliseconds, 2) for side, milliseconds in cost.items()},
        "wall_ms": round(took["home"] - took["worker"], 2),
        "epochs": arguments.epochs,
    }
    return Outcome("visit", cost["worker"] / cost["home"], figures, wrong)


def present(result: Result, charts: Path | None) -> str:
    rows = [[side, f"{ms:.2f}"] for side, ms in result["processor_ms"].items()]
    return table(["", "processor time per partition and epoch (ms)"], rows)
