# SPDX-License-Identifier: Apache-2.0
"""Contests of many contenders in rows per second: keyed functions, windows and joins.

A contest has works, one after another. In a work, contenders take turns. In a turn, a contender runs some
micro-batches, or a job over a share of a micro-batch's rows, and the others wait, in separate processes. Every result
is checked. There are two schedules:

- In rounds: all contenders run from beginning to end, and each has a turn in each round.
- In visits: pillarbox runs throughout, and peers run one after another. After each peer (with a warm-up first),
  pillarbox has a turn. So pillarbox is measured next to each peer, and at most two Sparks need memory.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.case import Result
from benchmarks.harness.process import Side, SideFailed
from benchmarks.harness.rows import SUBTASKS, MicroBatches
from benchmarks.harness.runners import BatchRunner, Contender, FastestStore, JobRunner, Round, Runner
from benchmarks.harness.stepped import Stepped
from benchmarks.harness.turns import extent, medians, rounded, table
from benchmarks.peers.environments import DIRECTORY, FLINK, Environment, NotInstalled
from benchmarks.report.charts import draw_bars
from benchmarks.report.words import page

# A JVM continues to compile for some time. Without this minimum, a side with micro-batches of ten seconds would begin
# its first round with a JVM ten times as old as a side with micro-batches of one second.
WARM_UP_SECONDS = 60


class Contest(ABC):
    """A contest, which runs its works one after another.

    Attributes:
        module: the case's module, as the sides import it.
        contenders: by name.
        stores: settings of the state stores to try for Spark, by name.
        flink: PyFlink's jobs, as an argument of ``Side``.
        visits: whether the contest is in visits. If False, it is in rounds.
        of: the plural noun for ``keys``.
        name: the current work's name.
        fastest: Spark's fastest store, by work.
        busy_ms: total duration of each process's micro-batches so far.
    """

    module: str
    contenders: Mapping[str, Contender]
    stores: Mapping[str, Mapping[str, str]] = {}
    flink: str
    visits = False
    of = "keys"

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.directory = directory
        self.name = ""
        self.wrong: list[str] = []
        self.left_out: dict[str, str] = {}
        self.fastest: dict[str, str] = {}
        self.done: dict[str, dict[str, list[Round]]] = {}
        self.busy_ms: Counter[str] = Counter()
        self._processes: dict[str, Side] = {}
        self._jobs: dict[str, list[Side]] = {}
        self._batches: dict[int, Any] = {}

    # -- differences between contests --

    @property
    @abstractmethod
    def title(self) -> str:
        """The current work's title."""

    @property
    def keys(self) -> int:
        """The number of keys in the current work."""
        return int(self.arguments.keys)

    @property
    def warm_up(self) -> int:
        """The minimum number of warm-up micro-batches: the small ones, and two full ones.

        The first full micro-batch brings the state to its final size, with which the second runs.
        """
        return 4

    @property
    def warm_up_ms(self) -> float:
        """The minimum total duration (ms) of a process's warm-up."""
        return 1000 * float(self.arguments.warm_up_seconds)

    @abstractmethod
    def new_batches(self, share: int, path: Path) -> MicroBatches:
        """Return new micro-batches, or a share of each, with files below ``path``."""

    def question(self, name: str) -> dict[str, Any]:
        """Return the arguments of a contender's query."""
        return {"query": name, "work": self.name}

    def spec(self) -> dict[str, Any]:
        """Return the work in the form that the peers' jobs expect."""
        return {}

    def runner(self, kind: str) -> Callable[[Any, str], Runner]:
        """Return a function that creates a runner for a kind of contender."""
        if kind in ("flink", "bytewax"):
            return JobRunner
        return FastestStore if kind == "spark" and self.stores else BatchRunner

    def job_sources(self, runner: Runner, count: int) -> list[str]:
        """Return the input of each process in a runner's next job."""
        path = runner.batches.path(runner.number, "csv")
        # (With two files, one reader may read both in turn, and the second file's rows would be late.)
        parts = [str(part) for part in range(SUBTASKS)] if count == SUBTASKS else ["whole"]
        streams = range(runner.batches.streams)
        return [
            ",".join(str(path / str(stream) / part) for stream in streams) if len(streams) > 1 else str(path / part)
            for part in parts
        ]

    def note_wrong(self, runner: Runner, line: str) -> None:
        """Record unexpected results."""
        self.wrong.append(line)

    # -- for runners --

    def batches(self, share: int) -> Any:
        """Return the work's micro-batches, or a share of each."""
        if share not in self._batches:
            self._batches[share] = self.new_batches(share, self.directory / "rows" / self.name / str(share))
        return self._batches[share]

    def rounds_of(self, contender: Contender, usual: int) -> int:
        """Return the number of a contender's micro-batches or jobs that count in a turn."""
        if contender.rounds is None:
            return usual
        return contender.rounds if contender.kind == "ours" else self.arguments.rounds or contender.rounds

    def directory_of(self, environment: Environment) -> Path:
        """Return the directory of a peer's environment."""
        return Path(self.arguments.environments) / environment.name

    def new_process(self, name: str, kind: str) -> Side:
        """Start a process for queries over micro-batches."""
        return Side(
            Stepped,
            module=self.module,
            directory=self.directory / f"spark-{name}",
            memory=self.arguments.memory,
            ours=kind in ("ours", "own"),
            source=getattr(self.arguments, "source", None),
        )

    def process(self, name: str, kind: str) -> Side:
        """Return the process with a name, and start it if missing."""
        if name not in self._processes:
            self._processes[name] = self.new_process(name, kind)
        return self._processes[name]

    def new_jobs(self, name: str, kind: str) -> list[Side]:
        """Start the processes of a peer that runs jobs."""
        # In thread mode, all subtasks of a process share Python's lock.
        of_each = 1 if name == "thread" else SUBTASKS
        options = {"mode": name, "parallelism": of_each, "bundle": self.arguments.flink_bundle}
        return [FLINK.side(self.flink, self.directory_of(FLINK), **options) for _ in range(SUBTASKS // of_each)]

    def jobs(self, name: str, kind: str) -> Sequence[Side]:
        """Return the processes of a peer that runs jobs."""
        if name not in self._jobs:
            self._jobs[name] = self.new_jobs(name, kind)
        return self._jobs[name]

    def close(self, name: str = "") -> None:
        """End the processes of a contender, or of all."""
        for sides in (self._processes, self._jobs):
            for key in [name] if name else list(sides):
                closed = sides.pop(key, [])
                for side in closed if isinstance(closed, list) else [closed]:
                    side.close()

    # -- the turns --

    def run(self, works: Iterable[str], sides: Sequence[str], peers: Sequence[str]) -> None:
        """Run all works.

        Args:
            sides: names of pillarbox's sides.
        """
        try:
            for name in works:
                self.name = name
                print(f"{self.name}: {self.title}, {self.keys:,} {self.of}", flush=True)
                self.do_work(sides, peers)
        finally:
            self.close()

    def do_work(self, sides: Sequence[str], peers: Sequence[str]) -> None:
        """Run one work."""
        runners: dict[str, Runner] = {}
        try:
            (self._in_visits if self.visits else self._in_rounds)(runners, sides, peers)
            self.done.setdefault(self.name, {})
            for name, runner in runners.items():
                if runner.counted:
                    self.done[self.name].setdefault(name, runner.counted)
                if runner.tasks:
                    self._print_tasks(runner)
        finally:
            for runner in runners.values():
                runner.close()
            self._batches.clear()
            shutil.rmtree(self.directory / "rows", ignore_errors=True)

    def _in_rounds(self, runners: dict[str, Runner], sides: Sequence[str], peers: Sequence[str]) -> None:
        for name in [*sides, *peers]:
            if name not in self.left_out:
                self._try(name, runners, "warm_up")
        for _ in range(self.arguments.rounds):
            for name in list(runners):
                self._try(name, runners, "turn")

    def _in_visits(self, runners: dict[str, Runner], sides: Sequence[str], peers: Sequence[str]) -> None:
        for name in sides:
            self._try(name, runners, "warm_up")
            self.done.setdefault(self.name, {})[name] = runners[name].counted
        for name in peers:
            visit: dict[str, Runner] = {}
            self._try(name, visit, "warm_up")
            for key in list(visit):
                self._try(key, visit, "turn")
            for key, runner in visit.items():
                self.done[self.name][key] = runner.counted
                runner.close()
                self.close("limits" if runner.contender.kind == "limit" else key)
            for ours in sides:
                runners[ours].turn()
        if not peers:
            for ours in sides:
                runners[ours].turn()

    def _try(self, name: str, runners: dict[str, Runner], what: str) -> None:
        """Run a step of a contender. A peer that fails is left out from then on."""
        contender = self.contenders[name]
        try:
            if name not in runners:
                runners[name] = self.runner(contender.kind)(self, name)
            getattr(runners[name], what)()
        except (NotInstalled, SideFailed) as ended:
            if contender.kind in ("ours", "own", "spark", "limit", "bare"):
                raise
            print(f"{ended}\n{contender.title} is left out", flush=True)
            self.left_out[name] = _reason(str(ended))
            if runner := runners.pop(name, None):
                runner.close()

    def _print_tasks(self, runner: Runner) -> None:
        metrics = [metric for metric in runner.tasks[0] if metric != "state_sync"]
        figures = ", ".join(f"{metric} {'/'.join(f'{task[metric]:,}' for task in runner.tasks)}" for metric in metrics)
        print(f"{runner.title}, last micro-batch, by subtask: {figures}")

    # -- the figures --

    def figures(self, work: str, sides: Sequence[str]) -> dict[str, Any]:
        """Return a work's figures."""
        self.name = work
        done = self.done[work]
        rates = medians({name: [round_.rate for round_ in rounds] for name, rounds in done.items()})
        return {
            "keys": self.keys,
            "rows_per_s": rounded(rates),
            "over": {
                ours: {name: round(rates[ours] / rate, 3) for name, rate in rates.items() if name != ours}
                for ours in sides
            },
            "cpu_s_per_1m_rows": {
                name: round(
                    statistics.median(round_.cpu / round_.rows * 1e6 for round_ in rounds if round_.cpu is not None), 2
                )
                for name, rounds in done.items()
                if all(round_.cpu is not None for round_ in rounds)
            },
            "rounds": {name: [round(round_.rate) for round_ in rounds] for name, rounds in done.items()},
            "rows_of_a_round": {name: rounds[0].rows for name, rounds in done.items()},
            "store": self.fastest.get(work),
        }


def _reason(error: str) -> str:
    """Return the line with the message in a Python or Java stack trace."""
    lines = error.strip().splitlines()
    errors = [line.strip() for line in lines if re.match(r"\s*(Caused by: )?[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]


def contest_page(
    charts: Path | None, name: str, title: str, contenders: Mapping[str, Contender], result: Result
) -> str:
    """Return a work's chart and table: each contender's rate, and its ratio to pillarbox's rate."""
    titles = {key: contenders[key].title.strip("()") for key in result["rows_per_s"]}
    rates = {titles[key]: float(rate) for key, rate in result["rows_per_s"].items()}
    limits = [titles[key] for key in titles if contenders[key].title.startswith("(")]
    rows = [
        [
            titles[key],
            f"{rate:,}",
            extent(result["rounds"][key]),
            f"{result['cpu_s_per_1m_rows'][key]:.1f}" if key in result["cpu_s_per_1m_rows"] else "",
            *(f"{over[key]:.2f}" if key in over else "1.00" for over in result["over"].values()),
        ]
        for key, rate in result["rows_per_s"].items()
    ]
    head = ["rows per second", "median", "rounds", "CPU s per 1M rows"]
    return page(
        draw_bars(charts, name, title, rates, "rows per second", limits=limits),
        table(head + [f"{contenders[ours].title} over it" for ours in result["over"]], rows),
    )


def left_out(contenders: Mapping[str, Contender], result: Result) -> list[str]:
    """Return a sentence about each contender that did not run."""
    return [f"{contenders[name].title} is left out: {why}" for name, why in result["left_out"].items()]


# -- the command line --


def names_of(choices: Mapping[str, Any]) -> Any:
    """Return a function that parses a list of known names."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := set(names) - set(choices):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(choices)}")
        return [name for name in choices if name in names]

    return parse


def add_names(parser: argparse.ArgumentParser, option: str, choices: Mapping[str, Any], **more: Any) -> None:
    """Add an option for a list of known names, by default all names."""
    some = f"some of {','.join(choices)}; all by default"
    parser.add_argument(option, **{"type": names_of(choices), "default": list(choices), "help": some, **more})


def add_options(parser: argparse.ArgumentParser, *, rows: int, keys: int, rounds: int, warm_up_seconds: int) -> None:
    """Add the options of all contests.

    Args:
        rows: default number of rows in a micro-batch. The other arguments are also defaults.
    """
    parser.add_argument("--rows", type=int, default=rows, help="rows of a micro-batch, of each stream")
    parser.add_argument("--keys", type=int, default=keys, help="0: each work's own number")
    parser.add_argument("--warm-up-rows", type=int, default=rows // 10, help="rows of the small ones at the beginning")
    parser.add_argument("--warm-up-seconds", type=int, default=warm_up_seconds, help="of micro-batches in a JVM")
    parser.add_argument("--rounds", type=int, default=rounds, help="0: each contender's own number")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of each side on Spark in a round")
    parser.add_argument("--flink-bundle", type=int, default=10_000, help="elements in a bundle of PyFlink")
    parser.add_argument("--environments", type=Path, default=DIRECTORY, help="of the peers, made when missing")
    parser.add_argument("--memory", default="3g", help="of each Spark")
