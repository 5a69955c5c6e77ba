# SPDX-License-Identifier: Apache-2.0
"""Runs, measures and checks the contenders of a contest."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.rows import read_rows

if TYPE_CHECKING:
    from benchmarks.harness.contest import Contest

# After this many seconds, Spark may end idle Python workers before the end of the next micro-batch.
_IDLE = 45


@dataclass(frozen=True)
class Contender:
    """A contender: a program to measure.

    Attributes:
        kind: ``ours``, ``own`` (Spark's program on pillarbox), ``spark``, ``limit``, ``bare``, or the peer's
            environment.
        share: it receives one in ``share`` rows and keys. A dictionary has shares by work.
        warm_up: number of its micro-batches or jobs that do not count, if not the contest's number.
        rounds: number that count in a turn, if not the contest's number.
    """

    title: str
    kind: str
    share: int | Mapping[str, int] = 1
    warm_up: int | None = None
    rounds: int | None = None

    def share_of(self, work: str) -> int:
        """Return the contender's share of a work."""
        return self.share if isinstance(self.share, int) else self.share.get(work, 1)


@dataclass
class Round:
    """The measurement of a micro-batch or job."""

    rows: int
    ms: float
    cpu: float | None

    @property
    def rate(self) -> float:
        """Rows per second."""
        return 1000 * self.rows / self.ms


class Runner(ABC):
    """Runs a contender in a work."""

    def __init__(self, contest: Contest, name: str, title: str = "") -> None:
        self.contest = contest
        self.name = name
        self.contender = contest.contenders[name]
        self.title = title or self.contender.title
        self.batches = contest.batches(self.contender.share_of(contest.name))
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=contest.directory))
        self.number = 0
        self.counted: list[Round] = []
        self.tasks: list[dict[str, Any]] = []

    @abstractmethod
    def measure(self) -> tuple[Round, str, str]:
        """Run the next micro-batch or job. Returns (measurement, note, message about wrong results or "")."""

    def run(self, *, counts: bool) -> Round:
        """Run the next micro-batch or job, and check its results."""
        done, word, wrong = self.measure()
        if wrong:
            self.contest.note_wrong(self, f"{self.title}, number {self.number}: {wrong}")
        if counts:
            self.counted.append(done)
        self.number += 1
        print(
            f"  {self.title:28}{len(self.counted) if counts else 'warm-up':>8}{done.rows:12,} rows"
            f"{done.ms / 1000:8.1f} s{done.rate:11,.0f} /s  {word} {'WRONG' if wrong else 'as expected'}",
            flush=True,
        )
        return done

    def is_warm(self) -> bool:
        """Return whether the next micro-batch or job counts."""
        minimum = self.contender.warm_up
        return self.number >= (self.contest.warm_up if minimum is None else minimum)

    def warm_up(self) -> None:
        """Run the micro-batches or jobs that do not count."""
        while not self.is_warm():
            self.run(counts=False)

    def turn(self) -> None:
        """Run a turn."""
        for _ in range(self.contest.rounds_of(self.contender, 1)):
            self.run(counts=True)

    def close(self) -> None:
        """End the contender, and remove its files."""
        shutil.rmtree(self.directory, ignore_errors=True)


class BatchRunner(Runner):
    """Runs a query that receives micro-batches on request.

    Args:
        store: the state store whose settings it uses, or "" for the default store.
    """

    def __init__(self, contest: Contest, name: str, store: str = "") -> None:
        super().__init__(contest, name, f"{contest.contenders[name].title}, {store}" if store else "")
        self.store = store
        self.query = f"{name} {store}"
        # All limits share a process, because they do not compete with each other.
        self.process = "limits" if self.contender.kind == "limit" else name
        self.side = contest.process(self.process, self.contender.kind)
        self.side.ask(
            "begin",
            name=self.query,
            directory=self.directory / "query",
            settings=dict(contest.stores.get(store, {})),
            question=contest.question(name),
        )
        self.last = time.monotonic()

    def measure(self) -> tuple[Round, str, str]:
        staged = self.directory / f"{self.number:03}"
        shutil.copytree(self.batches.path(self.number, "parquet"), staged, copy_function=os.link)
        answer = self.side.ask("step", name=self.query, batch=staged)
        self.last = time.monotonic()
        self.contest.busy_ms[self.process] += answer["ms"]
        self.tasks = answer["tasks"]
        results, expected = answer["results"], self.batches.expected(self.number, self.contender.kind)
        word = ", ".join([f"{results[0]:,} emitted", *sorted({task["state_sync"] for task in self.tasks})])
        wrong = "" if results == expected else f"{results}, not {expected}"
        return Round(self.batches.length(self.number), answer["ms"], answer["cpu"]), word, wrong

    def is_warm(self) -> bool:
        return super().is_warm() and self.contest.busy_ms[self.process] >= self.contest.warm_up_ms

    def turn(self) -> None:
        # After so long a wait, Python workers are new, and their first micro-batch does not count.
        if self.contender.kind != "spark" and time.monotonic() - self.last > _IDLE:
            self.run(counts=False)
        for _ in range(self.contest.rounds_of(self.contender, self.contest.arguments.batches)):
            self.run(counts=True)

    def close(self) -> None:
        self.side.ask("end", name=self.query)
        super().close()


class FastestStore(Runner):
    """Runs Spark with the state store that was fastest in the last warm-up micro-batch."""

    def __init__(self, contest: Contest, name: str) -> None:
        super().__init__(contest, name)
        self.runners = [BatchRunner(contest, name, store) for store in contest.arguments.stores]

    def measure(self) -> tuple[Round, str, str]:
        return self.runners[0].measure()

    def warm_up(self) -> None:
        # In turns, so that no store profits from a JVM that the others have warmed up.
        rates = [0.0]
        while not all(runner.is_warm() for runner in self.runners):
            rates = [runner.run(counts=False).rate for runner in self.runners]
        fastest = self.runners.pop(rates.index(max(rates)))
        for runner in self.runners:
            runner.close()
        self.runners = [fastest]
        self.contest.fastest[self.contest.name] = fastest.store
        self.counted = fastest.counted

    def turn(self) -> None:
        self.runners[0].turn()

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        super().close()


class JobRunner(Runner):
    """Runs PyFlink or Bytewax. A round is a job over one micro-batch's rows alone."""

    def __init__(self, contest: Contest, name: str) -> None:
        super().__init__(contest, name)
        self.sides = contest.jobs(name, self.contender.kind)

    def measure(self) -> tuple[Round, str, str]:
        sources = self.contest.job_sources(self, len(self.sides))
        targets = [self.directory / f"{self.number}-{i}" for i in range(len(sources))]
        before = cpu_seconds(os.getpid())
        with ThreadPoolExecutor(len(self.sides)) as threads:
            asked = [
                threads.submit(side.ask, "run", source=source, target=target, **self.contest.spec())
                for side, source, target in zip(self.sides, sources, targets)
            ]
            seconds = max(future.result()["seconds"] for future in asked)
        # PyFlink's time does not include the start of a job, which uses most of its processor time.
        cpu = None if self.contender.kind == "flink" else cpu_seconds(os.getpid()) - before
        columns = read_rows(targets)
        word = f"{len(columns[0]) if columns else 0:,} emitted"
        done = Round(self.batches.job_length(self.number), 1000 * seconds, cpu)
        return done, word, self.batches.wrong_job(self.number, columns)

    def warm_up(self) -> None:
        self.run(counts=False)
        # The other small micro-batches are not needed, because a job begins without state.
        self.number = self.batches.small_ones
