# SPDX-License-Identifier: Apache-2.0
"""Comparisons in rounds, as ``bench_windows.py`` and ``bench_join.py`` make them: works, turns, figures, the command.

A comparison has works, one after the other. A work goes in rounds: in each of them every side in turn has some
micro-batches, or a job over a share of a micro-batch's rows, and the others wait, in processes of their own. Every
result is checked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contest_sides import Contender, MicroBatches, Runner, SparkRunner, serve
from benchmarks.environments import DIRECTORY, Environment, NotInstalled, PeerSide
from benchmarks.flink import FLINK, FlinkSide
from benchmarks.keyed_work import BUSY, SUBTASKS, TASK_METRICS, Round
from benchmarks.support import ROOT, Side, print_table, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Comparison(ABC):
    """All works, one after the other.

    Attributes:
        contenders: by name.
        stores: the settings of the state stores that Spark's own is tried with, by name.
        runners: by a contender's kind; the others are queries on Spark.
        small: how many micro-batches at the beginning have fewer rows.
        name: the work that is being done.
        fastest: the store that Spark's own was the fastest with, by work.
        busy_ms: how long the micro-batches of each process with a Spark have taken so far.
    """

    contenders: Mapping[str, Contender]
    stores: Mapping[str, Mapping[str, str]]
    runners: Mapping[str, Callable[[Any, str], Runner]]
    small: int

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.directory = directory
        self.name = ""
        self.wrong: list[str] = []
        self.left_out: dict[str, str] = {}
        self.fastest: dict[str, str] = {}
        self.done: dict[str, dict[str, list[Round]]] = {}
        self.tasks: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.busy_ms: Counter[str] = Counter()
        self._sparks: dict[str, Side] = {}
        self._jobs: dict[str, list[PeerSide]] = {}
        self._batches: dict[int, Any] = {}

    # -- what they differ in --

    @property
    @abstractmethod
    def title(self) -> str:
        """The words for the work that is being done."""

    @property
    @abstractmethod
    def keys(self) -> int:
        """Its keys."""

    @property
    def warm_up(self) -> int:
        """How many of its micro-batches do not count at least: the small ones, and two full ones.

        Behind the first full one the state is as large as it will be from then on, which the second one shows.
        """
        return self.small + 2

    @abstractmethod
    def new_batches(self, share: int, place: Path) -> MicroBatches:
        """Return its micro-batches, or a share of each; their files are to be below ``place``."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Return it as the peers' scripts get it."""

    @abstractmethod
    def job_script(self, name: str) -> str:
        """Return the script that runs the jobs of a peer."""

    @abstractmethod
    def job_sources(self, runner: Runner, count: int) -> list[str]:
        """Return what each of a number of processes reads in the next job of a runner."""

    def note_wrong(self, runner: Runner, line: str) -> None:
        """Take note of results that are not the expected ones."""
        self.wrong.append(line)

    # -- what the sides ask for --

    def batches(self, share: int) -> Any:
        """Return the work's micro-batches, or a share of each."""
        if share not in self._batches:
            self._batches[share] = self.new_batches(share, self.directory / "rows" / self.name / str(share))
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

    def jobs(self, name: str) -> Sequence[PeerSide]:
        """Return the processes of a peer that runs jobs: PyFlink, in a mode."""
        if name not in self._jobs:
            python = FLINK.make(self.place(FLINK))
            # In thread mode all subtasks of a process share Python's one lock.
            of_each = 1 if name == "thread" else SUBTASKS
            options = ("--mode", name, "--parallelism", str(of_each), "--bundle", str(self.arguments.flink_bundle))
            script = self.job_script(name)
            self._jobs[name] = [FlinkSide(python, script, *options) for _ in range(SUBTASKS // of_each)]
        return self._jobs[name]

    # -- the rounds --

    def run(self, works: Iterable[str]) -> None:
        """Do all works."""
        try:
            for name in works:
                self.name = name
                print(f"{self.name}: {self.title}, {self.keys:,} keys", flush=True)
                self._do_work()
        finally:
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
        contender = self.contenders[name]
        try:
            if name not in runners:
                runners[name] = self.runners.get(contender.kind, SparkRunner)(self, name)
            getattr(runners[name], what)()
        except (NotInstalled, SystemExit) as ended:
            if contender.kind in ("ours", "spark", "limit"):
                raise
            print(f"{ended}\n{contender.title} is left out", flush=True)
            self.left_out[name] = _reason(str(ended))
            if runner := runners.pop(name, None):
                runner.close()

    # -- the figures --

    def figures(self, work: str) -> dict[str, Any]:
        """Print the figures of a work, and return them."""
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
        print(f"\n{work}: {self.title}, {self.keys:,} keys")
        print_table(
            ["rows per second", "median", "lowest", "highest", "CPU s per 1M rows", "rounds"]
            + [f"{ours} over it" for ours in over],
            [
                [
                    self.contenders[name].title + (f" ({self.fastest[work]})" if name == "spark" else ""),
                    *spread([each.rate for each in rounds]),
                    f"{cpu[name]:.1f}" if name in cpu else "-",
                    f"{len(rounds)} of {rounds[0].rows:,}",
                    *(f"{medians[ours] / medians[name]:.2f}" for ours in over),
                ]
                for name, rounds in done.items()
            ],
        )
        for name, tasks in self.tasks[work].items():
            said = ", ".join(
                f"{metric} {'/'.join(f'{task[metric]:,}' for task in tasks)}"
                for metric in TASK_METRICS
                if metric != "state_sync"
            )
            print(f"{self.contenders[name].title}, last micro-batch, by subtask: {said}")
        return {
            "keys": self.keys,
            "rows_per_s": {name: round(value) for name, value in medians.items()},
            "over": over,
            "cpu_s_per_1m_rows": {name: round(value, 2) for name, value in cpu.items()},
            "rounds": {name: [round(each.rate) for each in rounds] for name, rounds in done.items()},
            "rows_of_a_round": {name: rounds[0].rows for name, rounds in done.items()},
            "store": self.fastest.get(work),
        }

    def report_problems(self) -> None:
        """Print which sides were left out, and which results are wrong."""
        for name, why in self.left_out.items():
            print(f"left out: {self.contenders[name].title}: {why}")
        for line in self.wrong:
            print(f"WRONG RESULTS: {line}")

    @abstractmethod
    def report(self, load: float) -> None:
        """Print all figures, and the last line.

        Args:
            load: the machine's before the start.
        """


def _reason(error: str) -> str:
    """Return the line of a stack trace, Python's or Java's, that says what happened."""
    lines = error.strip().splitlines()
    errors = [line.strip() for line in lines if re.match(r"\s*(Caused by: )?[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]


# -- the command --


def names_of(known: Mapping[str, Any]) -> Any:
    """Return what makes a list of some of the known names of an argument."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def arguments_of(doc: str | None, names: Mapping[str, Mapping[str, Any]], *, rows: int) -> argparse.ArgumentParser:
    """Return the arguments that all comparisons have.

    Args:
        doc: of the script.
        names: the options that take some of the known names.
        rows: of a micro-batch, by default.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for option, known in names.items():
        some = f"some of {','.join(known)}; all by default"
        dest = "stores" if option == "--formats" else None
        parser.add_argument(option, type=names_of(known), default=list(known), dest=dest, help=some)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of each side on Spark in a round")
    parser.add_argument("--rows", type=int, default=rows, help="rows of a micro-batch (of each stream)")
    parser.add_argument("--warm-up-rows", type=int, default=rows // 10, help="rows of the first two")
    parser.add_argument("--flink-bundle", type=int, default=10_000, help="elements in a bundle of PyFlink")
    parser.add_argument("--environments", type=Path, default=DIRECTORY, help="of the peers, made when missing")
    parser.add_argument("--memory", default="3g", help="of each Spark")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    return parser


def run(
    arguments: argparse.Namespace,
    works: Iterable[str],
    comparison: type[Comparison],
    schema: str,
    make: Callable[[DataFrame, Mapping[str, Any]], DataFrame],
) -> None:
    """Do what the command line asks for: all of it, or one side's part, in its process.

    Args:
        schema: the columns of the rows.
        make: makes the query that a question asks for.
    """
    # Spark's workers find the benchmark's modules where the driver does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    arguments.warm_up_rows = min(arguments.warm_up_rows, arguments.rows)
    if arguments.side:
        serve(arguments.side, arguments.memory, schema, make)
        return
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"NOTE: the machine is busy with other things (load {load:.1f})")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        compared = comparison(arguments, Path(directory))
        compared.run(works)
        compared.report(load)
    if compared.wrong:
        sys.exit(1)
