# SPDX-License-Identifier: Apache-2.0
"""This checkout against another revision of pillarbox, in pairs: is it slower than it was?

Both sides are driven by this checkout's benchmarks; only the ``pillarbox`` package that they import differs. For each
work there are two processes, one for each side, which take turns: a pair is a micro-batch (or a job, or a start) of
each, and every other pair goes the other way round. Some processes are slower than others from their start to their
end, so both are started several times. Each pair gives a ratio: the cost of this checkout over the cost of the
revision. The figure is the median of these ratios: below 1.0 this checkout is faster. If one quartile is below 1.0
and the other above it, the pairs show no difference.

The works come from the other benchmarks, each with pillarbox's side alone:

  keyed, sessions   a micro-batch of 1,000,000 rows
  windows-*, join-* the same, 500,000 rows of each stream for the join; as Python functions and by columns
  async             a job of 20,000 requests, ten milliseconds each
  epoch, empty      a micro-batch with 1,000 rows, and one without
  latency           the median latency of some seconds of records
  recovery          a cold start of the task alone with 500,000 keys

Run it with ``make bench-against REVISION=...`` or ``python benchmarks/bench_against.py --revision ...``. The last line
is one JSON object; ``ratio`` is the highest median of the works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import ROOT, SOURCE, Side, find_pillarbox, finish, print_table, revision_source

find_pillarbox()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import bench_join, bench_keyed, bench_sessions, bench_windows, keyed_work
from benchmarks.contest_sides import SparkRunner
from benchmarks.window_work import WORKS as WINDOWS

MEMORY = "2g"


class Turns(ABC):
    """One side of a work.

    Attributes:
        script: the benchmark whose side this is.
        warm_up: how many turns do not count.
    """

    script: str
    warm_up = 4

    def __init__(self, directory: Path, pillarbox: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True)
        # A side runs the script by whose name this process was called, with the environment of this process.
        sys.argv[0] = str(ROOT / "benchmarks" / self.script)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(pillarbox), str(ROOT)])
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Start the process."""

    @abstractmethod
    def turn(self) -> float:
        """Do a turn; return its cost, of which less is better."""

    @abstractmethod
    def close(self) -> None:
        """End the process."""


class Keyed(Turns):
    """The keyed benchmarks."""

    def __init__(self, directory: Path, pillarbox: Path, *, script: str, work: keyed_work.Work) -> None:
        self.script, self.work = script, work
        super().__init__(directory, pillarbox)

    def begin(self) -> None:
        arguments = Namespace(rows=1_000_000, keys=100_000, warm_up_rows=100_000, subtasks=16, memory=MEMORY, peers=[])
        self.comparison = keyed_work.Comparison(self.work, arguments, self.directory)
        self.runner = keyed_work.BatchRunner(self.comparison, "pillarbox")

    def turn(self) -> float:
        done, _, wrong = self.runner.measure()
        self.runner.number += 1
        if wrong:
            raise SystemExit(f"wrong results: {wrong}")
        return done.ms

    def close(self) -> None:
        self.runner.close()


class Contest(Turns):
    """Windows and joins."""

    def __init__(self, directory: Path, pillarbox: Path, *, module: Any, work: str, side: str) -> None:
        self.script = f"{module.__name__.rpartition('.')[2]}.py"
        self.kind = module.WindowComparison if module is bench_windows else module.JoinComparison
        self.rows = 1_000_000 if module is bench_windows else 500_000
        self.keys = 0 if module is bench_windows else 100_000
        self.work, self.side = work, side
        super().__init__(directory, pillarbox)

    def begin(self) -> None:
        self.comparison = self.kind(
            Namespace(rows=self.rows, keys=self.keys, warm_up_rows=self.rows // 10, memory=MEMORY), self.directory
        )
        self.comparison.name = self.work
        self.warm_up = self.comparison.warm_up + 2
        self.runner = SparkRunner(self.comparison, self.side)

    def turn(self) -> float:
        done, results, expected = self.runner.measure()
        self.runner.number += 1
        if results != expected:
            raise SystemExit(f"wrong results: {results}, not {expected}")
        return done.ms

    def close(self) -> None:
        self.runner.close()
        self.comparison.spark(self.side).close()


class Epoch(Turns):
    """Micro-batches of 1,000 rows, or of none."""

    script = "bench_epoch.py"
    warm_up = 15

    def __init__(self, directory: Path, pillarbox: Path, *, empty: bool) -> None:
        self.empty = empty
        self.number = 0
        super().__init__(directory, pillarbox)

    def begin(self) -> None:
        self.random = np.random.default_rng(1)
        self.side = Side("--side", "pillarbox", "--directory", str(self.directory), "--memory", MEMORY)

    def step(self, batch: Path | None) -> float:
        started = time.perf_counter()
        self.side.ask(what="step", batch=None if batch is None else str(batch))
        return time.perf_counter() - started

    def rows(self) -> float:
        keys = np.arange(10_000) if not self.number else self.random.choice(10_000, 1_000, replace=False)
        batch = self.directory / "staging" / f"{self.number:04}"
        self.number += 1
        batch.mkdir(parents=True)
        for part in range(2):
            pq.write_table(pa.table({"key": keys[part::2].astype(np.int32)}), batch / f"{part}.parquet")
        return self.step(batch)

    def turn(self) -> float:
        # The micro-batch after one with rows is another than those after it: Spark begins it by itself.
        if self.empty and self.number:
            return statistics.mean(self.step(None) for _ in range(4))
        return statistics.mean(self.rows() for _ in range(1 if self.empty else 4))

    def close(self) -> None:
        self.side.ask(what="finish")
        self.side.close()


class Latency(Turns):
    """Records from a socket, 500 a second."""

    script = "bench_latency.py"

    def begin(self) -> None:
        self.side = Side("--side", "pillarbox", "--directory", str(self.directory), "--memory", MEMORY)

    def turn(self) -> float:
        said = self.side.ask(rate=500, seconds=5, keys=1_000)
        if not said["agrees"]:
            raise SystemExit("wrong results")
        return float(statistics.median(said["latencies"]))

    def close(self) -> None:
        self.side.close()


class Requests(Turns):
    """Jobs with requests that sleep."""

    script = "bench_async.py"

    def begin(self) -> None:
        self.side = Side("--side", "pillarbox", "--memory", MEMORY)

    def turn(self) -> float:
        work = {"latency": 0.01, "capacity": 100, "port": None}
        said = self.side.ask(work=work, records=20_000, form="pillarbox")
        if "error" in said:
            raise SystemExit(said["error"])
        return float(said["seconds"])

    def close(self) -> None:
        self.side.close()


class Recovery(Turns):
    """Cold starts of the task alone."""

    script = "bench_recovery.py"
    warm_up = 1

    def begin(self) -> None:
        self.side = Side("--local", "spread", "--directory", str(self.directory), "--keys", "500000")

    def turn(self) -> float:
        said = self.side.ask(what="cold")
        if not said["agrees"]:
            raise SystemExit("wrong results")
        return float(said["seconds"])

    def close(self) -> None:
        self.side.close()


WORKS: dict[str, Callable[[Path, Path], Turns]] = {
    "keyed": partial(Keyed, script="bench_keyed.py", work=bench_keyed.CountWork()),
    "sessions": partial(Keyed, script="bench_sessions.py", work=bench_sessions.SessionsWork()),
    **{
        f"windows-{side}-{work}": partial(Contest, module=bench_windows, work=work, side=side)
        for work in WINDOWS
        for side in bench_windows.OURS
    },
    **{
        f"join-{side}": partial(Contest, module=bench_join, work=bench_join.WORK, side=side) for side in bench_join.OURS
    },
    "async": Requests,
    "epoch": partial(Epoch, empty=False),
    "empty": partial(Epoch, empty=True),
    "latency": Latency,
    "recovery": Recovery,
}


def measure(name: str, places: dict[str, Path], pairs: int) -> list[float]:
    """Return this checkout's cost over the revision's, for some pairs of two new processes."""
    sides: dict[str, Turns] = {}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-against-") as directory:
        try:
            for side, pillarbox in places.items():
                sides[side] = WORKS[name](Path(directory) / side, pillarbox)
            warm_up = max(side.warm_up for side in sides.values())
            for index in range(-warm_up, pairs):
                order = list(sides) if index % 2 else list(reversed(sides))
                costs = {side: sides[side].turn() for side in order}
                if index >= 0:
                    ratios.append(costs["this"] / costs["revision"])
                    print(f"  {name:28}  {costs['this']:10.3f} over {costs['revision']:10.3f}", flush=True)
        finally:
            for each in sides.values():
                each.close()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--revision", required=True, help="a commit, branch or tag of this repository")
    parser.add_argument("--works", type=lambda text: text.split(","), default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--starts", type=int, default=3, help="how often both processes are started")
    parser.add_argument("--pairs", type=int, default=3, help="of two processes")
    arguments = parser.parse_args()
    if unknown := set(arguments.works) - set(WORKS):
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(WORKS)}")
    with revision_source(arguments.revision) as revision:
        places = {"this": SOURCE, "revision": revision}
        orders = [dict(sorted(places.items(), reverse=bool(number % 2))) for number in range(arguments.starts)]
        found = {
            name: [ratio for order in orders for ratio in measure(name, order, arguments.pairs)]
            for name in arguments.works
        }
    quartiles = {name: statistics.quantiles(ratios, n=4, method="inclusive") for name, ratios in found.items()}
    print_table(
        [f"this checkout over {arguments.revision}", "median", "quartile", "quartile"],
        [[name, f"{median:.3f}", f"{low:.3f}", f"{high:.3f}"] for name, (low, median, high) in quartiles.items()],
    )
    finish(
        "against",
        max(median for _, median, _ in quartiles.values()),
        revision=arguments.revision,
        quartiles={name: [round(value, 3) for value in values] for name, values in quartiles.items()},
        pairs={name: [round(ratio, 3) for ratio in ratios] for name, ratios in found.items()},
    )


if __name__ == "__main__":
    main()
