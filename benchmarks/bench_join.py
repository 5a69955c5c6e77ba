# SPDX-License-Identifier: Apache-2.0
"""Interval join of two streams: pillarbox beside Spark's own stream-stream join and PyFlink, rows per second.

Rows of two streams with the same key, whose times are at most five seconds apart; 100,000 keys, micro-batches of
500,000 rows a side, which cover five minutes of event time, the watermark is 5 seconds behind (see ``join_work.py``).
All emit (key, both times, sum of both amounts), in append mode.

pillarbox has two sides, both of them or those in ``--sides``: ``columnar``, ``interval_join(...).columns()``, and
``python``, a ``ProcessJoinFunction``. The peers, all of them or those in ``--peers``:

  spark     Spark's own join with a watermark, which has no Python in it: with the fastest of its state formats and
            stores, those in ``--formats``: ``hdfs-2`` (in the JVM's memory), ``rocksdb-2``, ``rocksdb-3`` and
            ``rocksdb-4`` (with changelog checkpoints, and rows not counted); all warm up, and the last micro-batch of
            that tells
  thread    PyFlink's ``KeyedCoProcessFunction`` that keeps the rows of each side in a map state, in thread mode
  process   the same in process mode

and the limit ``one-hop``: the same rows through Python once, behind a shuffle, with no work done. PyFlink gets an
environment of its own, made when it is missing; when it cannot be had here it is left out, and the result says why.

The sides go in rounds. In each of them every side in turn has a micro-batch; the others wait, in processes of their
own. What counts is a side's median over its rounds, five by default. The warm-up is two small micro-batches and a full
one. Spark ends Python workers that were idle for a minute: a side with Python that has waited for as long gets a
micro-batch more, which does not count.

- On Spark the cores are two, shuffle partitions two, output goes into ``foreachBatch`` with the sink ``noop``. Both
  streams are halves of one source, so that a micro-batch has all of its rows. A micro-batch's throughput is the rows of
  both sides over its ``triggerExecution``.
- PyFlink takes many times as long, so its round is a job over a share of a micro-batch's rows with the same share of
  its keys, so as many rows a key. A job begins without state, and has no checkpoints; its start does not count. All
  that is to its favour. In thread mode two processes with half of the keys each run side by side, as threads would
  share Python's one lock. See ``join_flink.py``.

Every result is checked, against pairs that numpy finds: number of rows, sum of amounts, and a checksum of all columns,
of each micro-batch or job.

Run it with ``make bench-join`` or ``python benchmarks/bench_join.py``. The last line of the output is one JSON object;
``ratio`` is rows per second of pillarbox's columnar side over those of Spark's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import find_pillarbox

find_pillarbox()

from benchmarks.bench_windows import names_of, reason
from benchmarks.environments import DIRECTORY, NotInstalled
from benchmarks.flink import FLINK, FlinkSide
from benchmarks.join_work import BOUND, DELAY, QUERIES, SCHEMA, SMALL, Batches
from benchmarks.keyed_work import BUSY, SUBTASKS, TASK_METRICS, Round, observed, summary
from benchmarks.support import (
    ROOT,
    Side,
    SteppedQuery,
    answer,
    cpu_seconds,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
    step_settings,
    task_reports,
)
from benchmarks.window_sides import IDLE, STORES, no_error, summary_of
from pillarbox.runtime.spark.session import local_session

OURS = {"columnar": "pillarbox, columnar", "python": "pillarbox, Python"}
PEERS = {
    "spark": "Spark's own",
    "thread": "PyFlink, thread mode",
    "process": "PyFlink, process mode",
    "one-hop": "(identity, one hop)",
}
TITLES = {**OURS, **PEERS}
# A job of PyFlink gets one in so many rows and keys.
SHARES = {"thread": 5, "process": 50}
_VERSION = "spark.sql.streaming.join.stateFormatVersion"
FORMATS: Mapping[str, Mapping[str, str]] = {
    "hdfs-2": {**STORES["spark-hdfs"], _VERSION: "2"},
    "rocksdb-2": {**STORES["spark-rocksdb"], _VERSION: "2"},
    "rocksdb-3": {**STORES["spark-rocksdb"], _VERSION: "3"},
    "rocksdb-4": {**STORES["spark-rocksdb"], _VERSION: "4"},
}


# -- on Spark, in a process of its own --


def serve(directory: Path, memory: str) -> None:
    """Run queries over micro-batches that come when they are asked for."""
    spark = local_session(SUBTASKS, **step_settings(directory, memory))
    queries: dict[str, SteppedQuery] = {}
    for question in questions():
        name = question["name"]
        if question["do"] == "begin":
            for setting, value in question["settings"].items():
                spark.conf.set(setting, value)
            queries[name] = query = SteppedQuery(spark, Path(question["directory"]), SCHEMA)
            query.start(observed(QUERIES[question["query"]](query.source)))
            answer()
        elif question["do"] == "end":
            queries.pop(name).stop()
            answer()
        else:
            before = cpu_seconds(os.getpid())
            progress = queries[name].step(question["batch"])
            answer(
                ms=progress.durationMs["triggerExecution"],
                cpu=cpu_seconds(os.getpid()) - before,
                results=[value or 0 for value in progress.observedMetrics["results"]],
                tasks=[{name: task[name] for name in TASK_METRICS} for task in task_reports(progress)],
            )
    spark.stop()


# -- in the benchmark's process --


class Runner(ABC):
    """A side."""

    def __init__(self, comparison: Comparison, name: str, title: str = "") -> None:
        self.comparison = comparison
        self.name = name
        self.title = title or TITLES[name]
        self.batches = comparison.batches(SHARES.get(name, 1))
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=comparison.directory))
        self.number = 0
        self.counted: list[Round] = []
        self.tasks: list[dict[str, Any]] = []

    @abstractmethod
    def measure(self) -> tuple[Round, list[int], list[int]]:
        """Run the next micro-batch or job; give also its results, and what they must be."""

    def run(self, *, counts: bool) -> Round:
        done, results, expected = self.measure()
        if wrong := results != expected:
            self.comparison.wrong.append(f"{self.title}, number {self.number}: {results}, not {expected}")
        if counts:
            self.counted.append(done)
        self.number += 1
        print(
            f"  {self.title:26}{len(self.counted) if counts else 'warm-up':>8}{done.rows:12,} rows"
            f"{done.ms / 1000:8.1f} s{done.rate:11,.0f} /s  {results[0]:,} emitted"
            f" {'WRONG' if wrong else 'as expected'}",
            flush=True,
        )
        return done

    def warm_up(self) -> None:
        for _ in range(SMALL + 1):
            self.run(counts=False)

    def turn(self) -> None:
        """Do a round."""
        self.run(counts=True)

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class SparkRunner(Runner):
    """A query on Spark."""

    def __init__(self, comparison: Comparison, name: str, state: str = "") -> None:
        super().__init__(comparison, name, f"{TITLES[name]}, {state}" if state else "")
        self.query = f"{name} {state}"
        self.state = state
        self.side = comparison.spark(name)
        directory = str(self.directory / "query")
        settings = dict(FORMATS.get(state, {}))
        self.side.ask(do="begin", name=self.query, query=name, directory=directory, settings=settings)
        self.last = time.monotonic()

    def measure(self) -> tuple[Round, list[int], list[int]]:
        staged = self.directory / f"{self.number:03}"
        shutil.copytree(self.batches.place(self.number, "parquet"), staged, copy_function=os.link)
        said = self.side.ask(do="step", name=self.query, batch=str(staged))
        self.last = time.monotonic()
        self.tasks = said["tasks"]
        expected = self.batches.expected(self.number)
        if self.name == "one-hop":
            sides = [self.batches.side(self.number, side) for side in (0, 1)]
            key, ts, amount = (np.concatenate(columns) for columns in zip(*sides))
            expected = summary([key, ts, ts, amount])
        return Round(self.batches.length(self.number), said["ms"], said["cpu"]), said["results"], expected

    def turn(self) -> None:
        if self.name != "spark" and time.monotonic() - self.last > IDLE:
            self.run(counts=False)
        super().turn()

    def close(self) -> None:
        self.side.ask(do="end", name=self.query)
        super().close()


class FastestState(Runner):
    """Spark's own join, with the state format and store that are the fastest at the end of the warm-up."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        self.runners = [SparkRunner(comparison, name, state) for state in comparison.arguments.formats]

    def measure(self) -> tuple[Round, list[int], list[int]]:
        return self.runners[0].measure()

    def warm_up(self) -> None:
        # In turns, so that none has a JVM that the others have warmed up.
        for _ in range(SMALL + 1):
            rates = [runner.run(counts=False).rate for runner in self.runners]
        fastest = self.runners.pop(rates.index(max(rates)))
        for runner in self.runners:
            runner.close()
        self.runners = [fastest]
        self.comparison.state = fastest.state
        self.counted = fastest.counted

    def turn(self) -> None:
        self.runners[0].turn()

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        super().close()


class JobRunner(Runner):
    """PyFlink: a round is a job over the rows of a micro-batch by themselves."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        python = FLINK.make(Path(comparison.arguments.environments) / FLINK.name)
        of_each = 1 if name == "thread" else SUBTASKS
        options = ("--mode", name, "--parallelism", str(of_each), "--bundle", str(comparison.arguments.flink_bundle))
        self.sides = [FlinkSide(python, "join_flink.py", *options) for _ in range(SUBTASKS // of_each)]

    def measure(self) -> tuple[Round, list[int], list[int]]:
        place = self.batches.place(self.number, "csv")
        halves = [str(part) for part in range(SUBTASKS)] if len(self.sides) == SUBTASKS else [""]
        sources = [",".join(str(place / str(side) / half) for side in (0, 1)) for half in halves]
        targets = [self.directory / f"{self.number}-{i}" for i in range(len(sources))]
        spec = {"delay": DELAY, "bound": BOUND}
        with ThreadPoolExecutor(len(self.sides)) as threads:
            asked = [
                threads.submit(side.ask, spec=spec, source=source, target=str(target))
                for side, source, target in zip(self.sides, sources, targets)
            ]
            said = [no_error(each.result()) for each in asked]
        done = Round(self.batches.length(self.number), 1000 * max(each["seconds"] for each in said), None)
        return done, summary_of(targets), self.batches.all_of(self.number)

    def warm_up(self) -> None:
        self.run(counts=False)
        # The other small one is not needed: a job has no state.
        self.number = SMALL

    def close(self) -> None:
        for side in self.sides:
            side.close()
        super().close()


RUNNERS: Mapping[str, type[Runner]] = {"spark": FastestState, "thread": JobRunner, "process": JobRunner}


class Comparison:
    """All sides."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.directory = directory
        self.wrong: list[str] = []
        self.left_out: dict[str, str] = {}
        self.state = ""
        self.done: dict[str, Runner] = {}
        self._sparks: dict[str, Side] = {}
        self._batches: dict[int, Batches] = {}

    def batches(self, share: int) -> Batches:
        """Return the micro-batches, or a share of each."""
        if share not in self._batches:
            arguments, place = self.arguments, self.directory / "rows" / str(share)
            small = max(arguments.warm_up_rows // share, 10)
            self._batches[share] = Batches(max(arguments.rows // share, 10), small, arguments.keys // share, place)
        return self._batches[share]

    def spark(self, name: str) -> Side:
        """Return a process with a Spark."""
        if name not in self._sparks:
            directory = self.directory / f"spark-{name}"
            self._sparks[name] = Side("--side", str(directory), "--memory", self.arguments.memory)
        return self._sparks[name]

    def run(self) -> None:
        """Do all rounds."""
        try:
            for name in [*self.arguments.sides, *self.arguments.peers]:
                self._try(name, "warm_up")
            for _ in range(self.arguments.rounds):
                for name in list(self.done):
                    self._try(name, "turn")
        finally:
            for runner in self.done.values():
                runner.close()
            for side in self._sparks.values():
                side.close()

    def _try(self, name: str, what: str) -> None:
        """Have a side do something; a peer that does not run is left out from then on."""
        try:
            if name not in self.done:
                self.done[name] = RUNNERS.get(name, SparkRunner)(self, name)
            getattr(self.done[name], what)()
        except (NotInstalled, SystemExit) as ended:
            if name not in SHARES:
                raise
            print(f"{ended}\n{TITLES[name]} is left out", flush=True)
            self.left_out[name] = reason(str(ended))
            if runner := self.done.pop(name, None):
                runner.close()

    def report(self, load: float) -> None:
        """Print the figures."""
        done = {name: runner.counted for name, runner in self.done.items() if runner.counted}
        medians = {name: statistics.median(each.rate for each in rounds) for name, rounds in done.items()}
        cpu = {
            name: statistics.median(each.cpu / each.rows * 1e6 for each in rounds if each.cpu is not None)
            for name, rounds in done.items()
            if all(each.cpu is not None for each in rounds)
        }
        ours = [name for name in self.arguments.sides if name in medians]
        over = {
            one: {name: round(medians[one] / rate, 3) for name, rate in medians.items() if name != one} for one in ours
        }
        print(f"\nrows at most {BOUND // 1000} seconds apart, {self.arguments.keys:,} keys")
        print_table(
            ["rows per second", "median", "lowest", "highest", "CPU s per 1M rows", "rounds"]
            + [f"{one} over it" for one in ours],
            [
                [
                    TITLES[name] + (f" ({self.state})" if name == "spark" else ""),
                    *spread([each.rate for each in rounds]),
                    f"{cpu[name]:.1f}" if name in cpu else "-",
                    f"{len(rounds)} of {rounds[0].rows:,}",
                    *(f"{medians[one] / medians[name]:.2f}" for one in ours),
                ]
                for name, rounds in done.items()
            ],
        )
        for name in ours:
            said = ", ".join(
                f"{metric} {'/'.join(f'{task[metric]:,}' for task in self.done[name].tasks)}"
                for metric in TASK_METRICS
                if metric != "state_sync"
            )
            print(f"{TITLES[name]}, last micro-batch, by subtask: {said}")
        for name, why in self.left_out.items():
            print(f"left out: {TITLES[name]}: {why}")
        for line in self.wrong:
            print(f"WRONG RESULTS: {line}")
        finish(
            "join",
            over.get("columnar", {}).get("spark", 0),
            results_agree=not self.wrong,
            keys=self.arguments.keys,
            rows=self.arguments.rows,
            rows_per_s={name: round(value) for name, value in medians.items()},
            over=over,
            cpu_s_per_1m_rows={name: round(value, 2) for name, value in cpu.items()},
            rounds={name: [round(each.rate) for each in rounds] for name, rounds in done.items()},
            rows_of_a_round={name: rounds[0].rows for name, rounds in done.items()},
            state=self.state,
            left_out=self.left_out,
            load_before=round(load, 1),
            spark=spark_version(),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for option, known in (("--sides", OURS), ("--peers", PEERS), ("--formats", FORMATS)):
        parser.add_argument(
            option, type=names_of(known), default=list(known), help=f"some of {','.join(known)}; all by default"
        )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of each side in a micro-batch")
    parser.add_argument("--warm-up-rows", type=int, default=50_000, help="the same of the first two")
    parser.add_argument("--keys", type=int, default=100_000)
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
    with tempfile.TemporaryDirectory(prefix="bench-join-") as directory:
        comparison = Comparison(arguments, Path(directory))
        comparison.run()
        comparison.report(load)
    if comparison.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
