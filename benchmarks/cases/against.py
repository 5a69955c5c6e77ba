# SPDX-License-Identifier: Apache-2.0
"""Compares this checkout with another revision of pillarbox, in pairs, to detect slowdowns.

This checkout's benchmarks drive both sides; only the imported ``pillarbox`` package differs. For each work, there are
two processes, one per side, which take turns. A pair is one turn of each side: a micro-batch, a job or a start. Every
other pair is in reverse order. Some processes are slower than others from start to end, so both are started several
times. Each pair gives a ratio: the cost of this checkout divided by the cost of the revision. The result is the median
of these ratios. If it is less than 1.0, this checkout is faster. If one quartile is less than 1.0 and the other is
greater, the pairs show no difference.

The works are from the other benchmarks, each with pillarbox's side alone:

  keyed, sessions   a micro-batch of 1,000,000 rows
  windows-*, join-* the same, with 500,000 rows of each stream for the join; with Python functions and columnar
  stateless, copies a job of map, filter and map over 2,000,000 rows; a job that emits 1,000,000 dataclasses, with and
                    without object reuse
  async             a job of 20,000 requests of ten milliseconds
  epoch, empty      a micro-batch with 1,000 rows, and one without rows
  latency           the median latency of records during some seconds
  recovery          a cold start of the task alone with 500,000 keys

In the last line, ``ratio`` is the highest median of the works.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.epochs.epoch import Epochs
from benchmarks.cases.epochs.latency import Latencies
from benchmarks.cases.rates import join, keyed, sessions, windows
from benchmarks.cases.rates.async_io import Lookups
from benchmarks.cases.rates.copies import BatchJobs
from benchmarks.cases.rates.window_rows import WORKS as WINDOWS
from benchmarks.cases.state.recovery import Alone
from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.contest import Contest, add_names
from benchmarks.harness.process import SOURCE, Side, revision_source
from benchmarks.harness.rows import write_halves
from benchmarks.harness.runners import BatchRunner
from benchmarks.harness.turns import rounded, table, turns

MEMORY = "2g"
SMALL = {"works": ["epoch", "recovery"], "starts": 1, "pairs": 2}
BLOCKS: dict[str, Block] = {}


@dataclass(frozen=True)
class Turns:
    """One side of a work.

    Attributes:
        turn: runs a turn, and returns its cost. Less is better.
        close: ends the process.
        warm_up: number of turns that do not count.
    """

    turn: Callable[[], float]
    close: Callable[[], None]
    warm_up: int = 4


def micro_batch(directory: Path, source: Path, *, kind: type[Contest], case: Any, work: str, contender: str) -> Turns:
    """Return turns that each run a micro-batch of a contest."""
    directory.mkdir(parents=True)
    parser = argparse.ArgumentParser()
    case.options(parser)
    arguments = parser.parse_args(["--memory", MEMORY])
    arguments.source = source
    contest = kind(arguments, directory)
    contest.name = work
    runner = BatchRunner(contest, contender)

    def turn() -> float:
        done, _, wrong = runner.measure()
        runner.number += 1
        if wrong:
            raise SystemExit(f"wrong results: {wrong}")
        return done.ms

    def close() -> None:
        runner.close()
        contest.close()

    return Turns(turn, close, contest.warm_up + 2)


def epoch(directory: Path, source: Path, *, empty: bool) -> Turns:
    """Return turns that each run a micro-batch of 1,000 rows, or an empty one."""
    random = np.random.default_rng(1)
    side = Side(Epochs, source=source, side="pillarbox", directory=directory, memory=MEMORY)
    number = 0

    def step(batch: Path | None) -> float:
        started = time.perf_counter()
        side.ask("step", batch=batch)
        return time.perf_counter() - started

    def rows() -> float:
        nonlocal number
        keys = random.choice(10_000, 1_000, replace=False) if number else np.arange(10_000)
        number += 1
        return step(write_halves(directory / "staging" / f"{number:04}", key=keys.astype(np.int32)))

    def turn() -> float:
        # The first empty micro-batch after rows differs from later ones: Spark itself begins it.
        if empty and number:
            return statistics.mean(step(None) for _ in range(4))
        return statistics.mean(rows() for _ in range(1 if empty else 4))

    def close() -> None:
        side.ask("finish")
        side.close()

    return Turns(turn, close, warm_up=15)


def asked(
    directory: Path,
    source: Path,
    *,
    kind: Callable[..., Any],
    settings: dict[str, Any],
    question: tuple[str, dict[str, Any]],
    cost: Callable[[dict[str, Any]], float],
    warm_up: int = 4,
) -> Turns:
    """Return turns that each call a method of another case's side.

    Args:
        kind: the side's class.
        settings: its arguments, in addition to the directory.
        question: the method and its arguments.
        cost: returns the cost in an answer.
    """
    directory.parent.mkdir(exist_ok=True)
    side = Side(kind, source=source, directory=directory, **settings)

    def turn() -> float:
        method, arguments = question
        answer = side.ask(method, **arguments)
        if not answer.get("agrees", True):
            raise SystemExit("wrong results")
        return cost(answer)

    return Turns(turn, side.close, warm_up)


def seconds(answer: dict[str, Any]) -> float:
    return float(answer["seconds"])


LOOKUPS = {"work": {"latency": 0.01, "capacity": 100, "port": None}, "records": 20_000, "form": "pillarbox"}
SENT = {"rate": 500, "seconds": 5, "keys": 1_000}
WORKS: dict[str, Callable[[Path, Path], Turns]] = {
    **{
        case.WORK: partial(micro_batch, kind=case.Keyed, case=case, work=case.WORK, contender="pillarbox")
        for case in (keyed, sessions)
    },
    **{
        f"windows-{side}-{work}": partial(
            micro_batch, kind=windows.WindowContest, case=windows, work=work, contender=side
        )
        for work in WINDOWS
        for side in windows.OURS
    },
    **{
        f"join-{side}": partial(micro_batch, kind=join.JoinContest, case=join, work=join.WORK, contender=side)
        for side in join.OURS
    },
    "async": partial(
        asked, kind=Lookups, settings={"memory": MEMORY, "ours": True}, question=("look_up", LOOKUPS), cost=seconds
    ),
    **{
        name: partial(
            asked,
            kind=BatchJobs,
            settings={"memory": MEMORY},
            question=("job", {"name": job, "rows": rows}),
            cost=seconds,
        )
        for name, job, rows in (
            ("stateless", "stateless", 2_000_000),
            ("copies", "copied", 1_000_000),
            ("copies-new", "new", 1_000_000),
            ("copies-reuse", "object reuse", 1_000_000),
        )
    },
    "epoch": partial(epoch, empty=False),
    "empty": partial(epoch, empty=True),
    "latency": partial(
        asked,
        kind=Latencies,
        settings={"side": "pillarbox", "memory": MEMORY},
        question=("turn", SENT),
        cost=lambda answer: statistics.median(answer["latencies"]),
    ),
    "recovery": partial(
        asked,
        kind=Alone,
        settings={"keys": 500_000, "timers": "spread"},
        question=("cold", {}),
        cost=seconds,
        warm_up=1,
    ),
}


def measure(name: str, places: dict[str, Path], pairs: int, directory: Path) -> list[float]:
    """Return the ratios of this checkout's cost to the revision's, for pairs of turns in two new processes."""
    sides: dict[str, Turns] = {}
    ratios: list[float] = []
    costs: dict[str, float] = {}
    try:
        for side, source in places.items():
            sides[side] = WORKS[name](directory / side, source)
        for index, side in turns(sides, pairs, max(side.warm_up for side in sides.values())):
            costs[side] = sides[side].turn()
            if index >= 0 and len(costs) == len(sides):
                ratios.append(costs["this"] / costs["revision"])
                print(f"  {name:28}  {costs['this']:10.3f} over {costs['revision']:10.3f}", flush=True)
            if len(costs) == len(sides):
                costs.clear()
    finally:
        for started in sides.values():
            started.close()
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
    figures = {"revision": arguments.revision, "quartiles": rounded(quartiles, 3), "pairs": rounded(ratios, 3)}
    return Outcome("against", max(median for _, median, _ in quartiles.values()), figures)


def present(result: Result, charts: Path | None) -> str:
    rows = [
        [name, f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}"]
        for name, (low, middle, high) in result["quartiles"].items()
    ]
    return table([f"this checkout over {result['revision']}", "median", "quartile", "quartile"], rows)
