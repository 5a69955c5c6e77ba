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

In the last line ``ratio`` is the highest median of the works.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.epochs.epoch import Epochs
from benchmarks.cases.epochs.latency import Latencies
from benchmarks.cases.rates import join, keyed, sessions, windows
from benchmarks.cases.rates.async_io import Lookups
from benchmarks.cases.rates.window_rows import WORKS as WINDOWS
from benchmarks.cases.state.recovery import Alone
from benchmarks.harness.case import Block, Outcome, Said
from benchmarks.harness.contest import Contest, add_names
from benchmarks.harness.process import SOURCE, Side, revision_source
from benchmarks.harness.rows import write_halves
from benchmarks.harness.runners import BatchRunner
from benchmarks.harness.turns import rounded, table, turns

MEMORY = "2g"
SMALL = {"works": ["epoch", "recovery"], "starts": 1, "pairs": 2}
BLOCKS: dict[str, Block] = {}


class Turns:
    """One side of a work.

    Attributes:
        warm_up: how many turns do not count.

    Args:
        source: whose pillarbox it has.
    """

    warm_up = 4

    def __init__(self, directory: Path, source: Path) -> None:
        self.directory = directory
        self.source = source

    def side(self, kind: Callable[..., Any], **arguments: Any) -> Side:
        """Start a process."""
        return Side(kind, source=self.source, **arguments)

    def turn(self) -> float:
        """Do a turn; return its cost, of which less is better."""
        raise NotImplementedError

    def close(self) -> None:
        """End the process."""


class MicroBatch(Turns):
    """Keyed functions, windows and joins."""

    def __init__(
        self, directory: Path, source: Path, *, kind: type[Contest], case: Any, work: str, contender: str
    ) -> None:
        super().__init__(directory, source)
        directory.mkdir(parents=True)
        parser = argparse.ArgumentParser()
        case.options(parser)
        arguments = parser.parse_args(["--memory", MEMORY])
        arguments.source = source
        self.contest = kind(arguments, directory)
        self.contest.name = work
        self.warm_up = max(self.warm_up, self.contest.warm_up + 2)
        self.runner = BatchRunner(self.contest, contender)

    def turn(self) -> float:
        done, _, wrong = self.runner.measure()
        self.runner.number += 1
        if wrong:
            raise SystemExit(f"wrong results: {wrong}")
        return done.ms

    def close(self) -> None:
        self.runner.close()
        self.contest.close()


class Epoch(Turns):
    """Micro-batches of 1,000 rows, or of none."""

    warm_up = 15

    def __init__(self, directory: Path, source: Path, *, empty: bool) -> None:
        super().__init__(directory, source)
        self.empty = empty
        self.number = 0
        self.random = np.random.default_rng(1)
        self.process = self.side(Epochs, side="pillarbox", directory=directory, memory=MEMORY)

    def step(self, batch: Path | None) -> float:
        started = time.perf_counter()
        self.process.ask("step", batch=batch)
        return time.perf_counter() - started

    def rows(self) -> float:
        keys = self.random.choice(10_000, 1_000, replace=False) if self.number else np.arange(10_000)
        self.number += 1
        return self.step(write_halves(self.directory / "staging" / f"{self.number:04}", key=keys.astype(np.int32)))

    def turn(self) -> float:
        # The micro-batch after one with rows is another than those after it: Spark begins it by itself.
        if self.empty and self.number:
            return statistics.mean(self.step(None) for _ in range(4))
        return statistics.mean(self.rows() for _ in range(1 if self.empty else 4))

    def close(self) -> None:
        self.process.ask("finish")
        self.process.close()


class Asked(Turns):
    """A side of another case, of which a turn asks one question.

    Args:
        kind: the side's class.
        made: its arguments, beside the directory.
        asked: the question and its arguments.
        cost: takes it from the answer.
    """

    def __init__(
        self,
        directory: Path,
        source: Path,
        *,
        kind: Callable[..., Any],
        made: dict[str, Any],
        asked: tuple[str, dict[str, Any]],
        cost: Callable[[dict[str, Any]], float],
        warm_up: int = Turns.warm_up,
    ) -> None:
        super().__init__(directory, source)
        self.warm_up = warm_up
        directory.parent.mkdir(exist_ok=True)
        self.process = self.side(kind, directory=directory, **made)
        self.asked = asked
        self.cost = cost

    def turn(self) -> float:
        method, arguments = self.asked
        said = self.process.ask(method, **arguments)
        if not said.get("agrees", True):
            raise SystemExit("wrong results")
        return self.cost(said)

    def close(self) -> None:
        self.process.close()


def seconds(said: dict[str, Any]) -> float:
    return float(said["seconds"])


WORKS: dict[str, Callable[[Path, Path], Turns]] = {
    **{
        case.WORK: partial(MicroBatch, kind=case.Keyed, case=case, work=case.WORK, contender="pillarbox")
        for case in (keyed, sessions)
    },
    **{
        f"windows-{side}-{work}": partial(
            MicroBatch, kind=windows.WindowContest, case=windows, work=work, contender=side
        )
        for work in WINDOWS
        for side in windows.OURS
    },
    **{
        f"join-{side}": partial(MicroBatch, kind=join.JoinContest, case=join, work=join.WORK, contender=side)
        for side in join.OURS
    },
    "async": partial(
        Asked,
        kind=Lookups,
        made={"memory": MEMORY, "ours": True},
        asked=(
            "look_up",
            {"work": {"latency": 0.01, "capacity": 100, "port": None}, "records": 20_000, "form": "pillarbox"},
        ),
        cost=seconds,
    ),
    "epoch": partial(Epoch, empty=False),
    "empty": partial(Epoch, empty=True),
    "latency": partial(
        Asked,
        kind=Latencies,
        made={"side": "pillarbox", "memory": MEMORY},
        asked=("turn", {"rate": 500, "seconds": 5, "keys": 1_000}),
        cost=lambda said: statistics.median(said["latencies"]),
    ),
    "recovery": partial(
        Asked, kind=Alone, made={"keys": 500_000, "timers": "spread"}, asked=("cold", {}), cost=seconds, warm_up=1
    ),
}


def measure(name: str, places: dict[str, Path], pairs: int, directory: Path) -> list[float]:
    """Return this checkout's cost over the revision's, for some pairs of two new processes."""
    sides: dict[str, Turns] = {}
    ratios: list[float] = []
    costs: dict[str, float] = {}
    try:
        for side, source in places.items():
            sides[side] = WORKS[name](directory / side, source)
        for index, side in turns(sides, pairs, max(each.warm_up for each in sides.values())):
            costs[side] = sides[side].turn()
            if index >= 0 and len(costs) == len(sides):
                ratios.append(costs["this"] / costs["revision"])
                print(f"  {name:28}  {costs['this']:10.3f} over {costs['revision']:10.3f}", flush=True)
            if len(costs) == len(sides):
                costs.clear()
    finally:
        for each in sides.values():
            each.close()
    return ratios


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--revision", required=True, help="a commit, branch or tag of this repository")
    add_names(parser, "--works", WORKS)
    parser.add_argument("--starts", type=int, default=3, help="how often both processes are started")
    parser.add_argument("--pairs", type=int, default=3, help="of two processes")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    ratios: dict[str, list[float]] = {}
    with revision_source(arguments.revision) as revision:
        for name in arguments.works:
            ratios[name] = []
            for number in range(arguments.starts):
                places = {"this": SOURCE, "revision": revision}
                order = dict(sorted(places.items(), reverse=bool(number % 2)))
                ratios[name] += measure(name, order, arguments.pairs, directory / f"{name} {number}")
    quartiles = {name: statistics.quantiles(all_, n=4, method="inclusive") for name, all_ in ratios.items()}
    said = {"revision": arguments.revision, "quartiles": rounded(quartiles, 3), "pairs": rounded(ratios, 3)}
    return Outcome("against", max(median for _, median, _ in quartiles.values()), said)


def present(said: Said, charts: Path | None) -> str:
    rows = [
        [name, f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}"] for name, (low, middle, high) in said["quartiles"].items()
    ]
    return table([f"this checkout over {said['revision']}", "median", "quartile", "quartile"], rows)
