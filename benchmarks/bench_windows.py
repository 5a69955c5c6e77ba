# SPDX-License-Identifier: Apache-2.0
"""Windows of count and sum: pillarbox beside Spark's own windows, PyFlink, Pathway and Bytewax, rows per second.

The works, all of them or those in ``--works``; all emit (key, start, count, sum), each window once (append mode):

  tumbling      a minute, 100,000 keys
  tumbling-10k  a minute, 10,000 keys
  sliding       an hour that slides by a minute, 10,000 keys
  sessions      sessions with a gap of 30 seconds, 100,000 keys

Micro-batches have 1,000,000 rows, which cover five minutes of event time, the watermark is 5 seconds behind (see
``window_work.py``). ``--keys`` and ``--rows`` are for other sizes.

pillarbox has two sides, both of them or those in ``--sides``: ``columnar``, aggregates of columns that Arrow computes,
and ``python``, an ``AggregateFunction`` in Python. The peers, all of them or those in ``--peers``:

  spark     Spark's own ``groupBy(window, key).agg(...)``, which has no Python in it: with the faster of its two state
            stores, RocksDB (with changelog checkpoints, and rows not counted) and the one in the JVM's memory; both
            warm up with each work, and the last micro-batch of that tells
  thread    PyFlink's windows with an ``AggregateFunction`` in Python, in thread mode
  process   the same in process mode
  pathway   Pathway's ``windowby``, in Rust
  bytewax   Bytewax's ``fold_window``

and the limits: ``two-hops``, the same rows through Python twice with a shuffle between and no work done, which is the
way of rows for functions in Python, and ``one-hop``, through Python once, behind a shuffle. PyFlink, Pathway and
Bytewax get an environment each, made when it is missing; one that cannot be had here is left out, and the result says
why.

A work goes in rounds. In each of them every side in turn has a micro-batch (``--batches`` for more); the others wait,
in processes of their own. What counts is a side's median over its rounds, five by default. The warm-up is two small
micro-batches and a full one; where windows slide the small ones are long enough. Spark ends Python workers that were
idle for a minute: a side with Python that has waited for as long gets a micro-batch more, which does not count.

- On Spark the cores are two, shuffle partitions two, output goes into ``foreachBatch`` with the sink ``noop``. A
  micro-batch's throughput is its ``numInputRows`` over its ``triggerExecution``.
- Pathway gets the same micro-batches (of rows and keys one in 200 where windows slide, one in ten for sessions); it
  persists nothing. See ``window_pathway.py``.
- PyFlink and Bytewax take many times as long, so their round is a job over a share of a micro-batch's rows with the
  same share of its keys, so as many rows a window. A job begins without state and closes all windows at its end, with
  no checkpoints; its start does not count. All that is to their favour. In thread mode, and for Bytewax, two processes
  with half of the keys each run side by side, as threads would share Python's one lock. See ``window_flink.py`` and
  ``window_bytewax.py``.

Every result is checked: number of rows, sum of totals, and a checksum of all columns, of each micro-batch or job
(Pathway: the first two). pillarbox emits a window in the micro-batch that brings the watermark, Spark in the one after
it.

Run it with ``make bench-windows`` or ``python benchmarks/bench_windows.py``. The last line of the output is one JSON
object; ``ratio`` is rows per second of pillarbox's columnar side over those of Spark's own, tumbling, at 100,000 keys.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox

find_pillarbox()

from benchmarks.environments import DIRECTORY, Environment, NotInstalled, PeerSide
from benchmarks.flink import FLINK, FlinkSide
from benchmarks.keyed_work import BUSY, SUBTASKS, TASK_METRICS, Round
from benchmarks.support import ROOT, Side, finish, print_table, spark_version, spread
from benchmarks.window_sides import (
    BYTEWAX,
    CONTENDERS,
    OURS,
    PEERS,
    FasterStore,
    JobRunner,
    PathwayRunner,
    Runner,
    SparkRunner,
    serve,
)
from benchmarks.window_work import DELAY, WORKS, Batches, Work

# By kind; the others are queries on Spark.
RUNNERS: Mapping[str, Callable[[Any, str], Runner]] = {
    "spark": FasterStore,
    "pathway": PathwayRunner,
    "flink": JobRunner,
    "bytewax": JobRunner,
}


class Comparison:
    """All works, one after the other."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.directory = directory
        self.wrong: list[str] = []
        self.known_wrong: list[str] = []
        self.left_out: dict[str, str] = {}
        self.stores: dict[str, str] = {}
        self.done: dict[str, dict[str, list[Round]]] = {}
        self.tasks: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.name = ""
        self._sparks: dict[str, Side] = {}
        self._jobs: dict[str, list[PeerSide]] = {}
        self._batches: dict[int, Batches] = {}

    @property
    def work(self) -> Work:
        """The work that is being done."""
        return WORKS[self.name]

    @property
    def keys(self) -> int:
        """Its keys."""
        return self.arguments.keys or self.work.keys

    def spec(self) -> dict[str, Any]:
        """Return it as the peers' scripts get it."""
        return {**self.work.spec(), "delay": DELAY}

    def batches(self, share: int) -> Batches:
        """Return its micro-batches, or a share of each."""
        if share not in self._batches:
            rows, small = self.arguments.rows // share, self.arguments.warm_up_rows // share
            place = self.directory / "rows" / self.name / str(share)
            self._batches[share] = Batches(self.work, rows, max(small, 10), self.keys // share, place)
        return self._batches[share]

    def place(self, environment: Environment) -> Path:
        """Return an environment's directory."""
        return Path(self.arguments.environments) / environment.name

    def spark(self, name: str) -> Side:
        """Return a process with a Spark."""
        if name not in self._sparks:
            directory = self.directory / f"spark-{name}"
            self._sparks[name] = Side("--side", str(directory), "--memory", self.arguments.memory)
        return self._sparks[name]

    def jobs(self, name: str) -> list[PeerSide]:
        """Return the processes of a peer that runs jobs."""
        if name not in self._jobs:
            if name == "bytewax":
                python = BYTEWAX.make(self.place(BYTEWAX))
                self._jobs[name] = [PeerSide(python, "window_bytewax.py") for _ in range(SUBTASKS)]
            else:
                python = FLINK.make(self.place(FLINK))
                of_each = 1 if name == "thread" else SUBTASKS
                options = ("--mode", name, "--parallelism", str(of_each), "--bundle", str(self.arguments.flink_bundle))
                self._jobs[name] = [FlinkSide(python, "window_flink.py", *options) for _ in range(SUBTASKS // of_each)]
        return self._jobs[name]

    def run(self) -> None:
        """Do all works."""
        for name in self.arguments.works:
            self.name = name
            print(f"{self.name}: {self.work.title}, {self.keys:,} keys", flush=True)
            self._do_work()
        for side in [*self._sparks.values(), *(side for sides in self._jobs.values() for side in sides)]:
            side.close()

    def _do_work(self) -> None:
        runners: dict[str, Runner] = {}
        try:
            for name in [*self.arguments.sides, *self.arguments.peers]:
                if name not in self.left_out:
                    self._try(name, runners, "warm_up")
            for _ in range(self.arguments.rounds):
                for name in list(runners):
                    self._try(name, runners, "turn")
            self.done[self.name] = {name: runner.counted for name, runner in runners.items() if runner.counted}
            self.tasks[self.name] = {name: runner.tasks for name, runner in runners.items() if runner.tasks}
        finally:
            for runner in runners.values():
                runner.close()
            self._batches.clear()
            shutil.rmtree(self.directory / "rows", ignore_errors=True)

    def _try(self, name: str, runners: dict[str, Runner], what: str) -> None:
        """Have a side do something; a peer that does not run is left out from then on."""
        kind = CONTENDERS[name].kind
        try:
            if name not in runners:
                runners[name] = RUNNERS.get(kind, SparkRunner)(self, name)
            getattr(runners[name], what)()
        except (NotInstalled, SystemExit) as ended:
            if kind in ("ours", "spark", "limit"):
                raise
            print(f"{ended}\n{CONTENDERS[name].title} is left out", flush=True)
            self.left_out[name] = reason(str(ended))
            if runner := runners.pop(name, None):
                runner.close()

    # -- what it says --

    def report(self, load: float) -> None:
        """Print the figures."""
        works = {}
        for work in self.done:
            works[work] = self._report_work(work)
        for name, why in self.left_out.items():
            print(f"left out: {CONTENDERS[name].title}: {why}")
        for line in self.wrong:
            print(f"WRONG RESULTS: {line}")
        for line in self.known_wrong:
            print(f"wrong results, of a defect that is known: {line}")
        first = works.get("tumbling", {}).get("over", {}).get("columnar", {})
        finish(
            "windows",
            first.get("spark", 0),
            results_agree=not self.wrong,
            known_to_be_wrong=self.known_wrong,
            works=works,
            left_out=self.left_out,
            rows=self.arguments.rows,
            load_before=round(load, 1),
            spark=spark_version(),
        )

    def _report_work(self, work: str) -> dict[str, Any]:
        self.name = work
        done = self.done[work]
        medians = {name: statistics.median(each.rate for each in rounds) for name, rounds in done.items()}
        cpu = {
            name: statistics.median(each.cpu / each.rows * 1e6 for each in rounds if each.cpu is not None)
            for name, rounds in done.items()
            if all(each.cpu is not None for each in rounds)
        }
        over = {
            ours: {name: round(medians[ours] / rate, 3) for name, rate in medians.items() if name != ours}
            for ours in self.arguments.sides
        }
        print(f"\n{self.name}: {self.work.title}, {self.keys:,} keys")
        print_table(
            ["rows per second", "median", "lowest", "highest", "CPU s per 1M rows", "rounds"]
            + [f"{ours} over it" for ours in over],
            [
                [
                    CONTENDERS[name].title + (f" ({self.stores[self.name][6:]})" if name == "spark" else ""),
                    *spread([each.rate for each in rounds]),
                    f"{cpu[name]:.1f}" if name in cpu else "-",
                    f"{len(rounds)} of {rounds[0].rows:,}",
                    *(f"{medians[ours] / medians[name]:.2f}" for ours in over),
                ]
                for name, rounds in done.items()
            ],
        )
        for name, tasks in self.tasks[self.name].items():
            said = ", ".join(
                f"{metric} {'/'.join(f'{task[metric]:,}' for task in tasks)}"
                for metric in TASK_METRICS
                if metric != "state_sync"
            )
            print(f"{CONTENDERS[name].title}, last micro-batch, by subtask: {said}")
        return {
            "keys": self.keys,
            "rows_per_s": {name: round(value) for name, value in medians.items()},
            "over": over,
            "cpu_s_per_1m_rows": {name: round(value, 2) for name, value in cpu.items()},
            "rounds": {name: [round(each.rate) for each in rounds] for name, rounds in done.items()},
            "rows": {name: rounds[0].rows for name, rounds in done.items()},
            "store": self.stores.get(self.name),
        }


def reason(error: str) -> str:
    """Return the line of a stack trace, Python's or Java's, that says what happened."""
    lines = error.strip().splitlines()
    errors = [line.strip() for line in lines if re.match(r"\s*(Caused by: )?[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]


def names_of(known: Mapping[str, Any]) -> Any:
    """Return what makes a list of some of the known names of an argument."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for option, known in (("--works", WORKS), ("--sides", OURS), ("--peers", PEERS)):
        parser.add_argument(
            option, type=names_of(known), default=list(known), help=f"some of {','.join(known)}; all by default"
        )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1, help="micro-batches, or jobs, of each side in a round")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a micro-batch")
    parser.add_argument("--warm-up-rows", type=int, default=100_000, help="rows of the first two")
    parser.add_argument("--keys", type=int, default=0, help="instead of each work's own number")
    parser.add_argument("--flink-bundle", type=int, default=10_000, help="elements in a bundle of PyFlink")
    parser.add_argument("--environments", type=Path, default=DIRECTORY, help="of the peers, made when missing")
    parser.add_argument("--memory", default="3g", help="of each Spark")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Spark's workers find this module where the driver does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    arguments.warm_up_rows = min(arguments.warm_up_rows, arguments.rows)
    if arguments.side:
        serve(arguments.side, arguments.memory)
        return
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"NOTE: the machine is busy with other things (load {load:.1f})")
    with tempfile.TemporaryDirectory(prefix="bench-windows-") as directory:
        comparison = Comparison(arguments, Path(directory))
        comparison.run()
        comparison.report(load)
    if comparison.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
