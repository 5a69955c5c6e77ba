# SPDX-License-Identifier: Apache-2.0
"""The sides of the comparisons in ``contest.py``: how each is run, measured and checked."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.keyed_work import SUBTASKS, TASK_METRICS, Round, observed, summary
from benchmarks.support import (
    STATE_STORE,
    SteppedQuery,
    answer,
    cpu_seconds,
    questions,
    step_settings,
    task_reports,
)
from pillarbox import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.contest import Comparison

# After this many seconds Spark may have ended idle Python workers, or will before the next micro-batch is through.
_IDLE = 45
# A JVM goes on compiling what it runs for some time: without this, a side whose micro-batches take ten seconds would
# come to its first round with a JVM ten times as old as that of a side whose micro-batches take one.
_WARM_UP_MS = 60_000
_STORE = "spark.sql.streaming.stateStore."
STORES: Mapping[str, Mapping[str, str]] = {
    "rocksdb": {
        _STORE + "providerClass": STATE_STORE,
        _STORE + "checkpointFormatVersion": "2",
        _STORE + "rocksdb.trackTotalNumberOfRows": "false",
    },
    "hdfs": {
        _STORE + "providerClass": STATE_STORE.replace("RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"),
        _STORE + "checkpointFormatVersion": "1",
    },
}
"""The settings of Spark's state stores; ``hdfs`` keeps its state in the JVM's memory."""


@dataclass(frozen=True)
class Contender:
    """Something that is measured.

    Attributes:
        kind: ``ours``, ``spark``, ``limit``, or the peer's environment.
        share: by work; it gets one in so many rows and keys.
    """

    title: str
    kind: str
    share: Mapping[str, int] = field(default_factory=dict)


class MicroBatches(Protocol):
    """The micro-batches of a work, or a share of each, and what must come of them."""

    def length(self, number: int) -> int:
        """Return a micro-batch's number of rows."""

    def place(self, number: int, form: str) -> Path:
        """Return the directory with a micro-batch's files: ``parquet``, ``csv``."""

    def expected(self, number: int, kind: str) -> list[int]:
        """Return the summary of what a contender of a kind must emit in a micro-batch."""

    def all_of(self, number: int) -> list[int]:
        """Return the summary of what must come of a micro-batch's rows by themselves."""


# -- on Spark, in a process of its own --


def serve(directory: Path, memory: str, schema: str, make: Callable[[DataFrame, Mapping[str, Any]], DataFrame]) -> None:
    """Run queries over micro-batches that come when they are asked for.

    Args:
        make: makes the query that a question asks for, of a streaming DataFrame with the columns of ``schema``.
    """
    spark = local_session(SUBTASKS, **step_settings(directory, memory))
    queries: dict[str, SteppedQuery] = {}
    for question in questions():
        name = question["name"]
        if question["do"] == "begin":
            for setting, value in question["settings"].items():
                spark.conf.set(setting, value)
            queries[name] = query = SteppedQuery(spark, Path(question["directory"]), schema)
            query.start(observed(make(query.source, question)))
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
                tasks=[{name: getattr(task, name) for name in TASK_METRICS} for task in task_reports(progress)],
            )
    spark.stop()


# -- in the benchmark's process --


class Runner(ABC):
    """A side in a work."""

    def __init__(self, comparison: Comparison, name: str, title: str = "") -> None:
        self.comparison = comparison
        self.name = name
        self.contender = comparison.contenders[name]
        self.title = title or self.contender.title
        self.batches = comparison.batches(self.contender.share.get(comparison.name, 1))
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=comparison.directory))
        self.number = 0
        self.counted: list[Round] = []
        self.tasks: list[dict[str, Any]] = []

    @abstractmethod
    def measure(self) -> tuple[Round, list[int], list[int]]:
        """Run the next micro-batch or job; return also its results, and those that it must have."""

    def run(self, *, counts: bool) -> Round:
        """Run the next micro-batch or job, and check its results."""
        done, results, expected = self.measure()
        if wrong := results != expected:
            self.comparison.note_wrong(self, f"{self.title}, number {self.number}: {results}, not {expected}")
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

    def is_warm(self) -> bool:
        """Return whether what comes next counts."""
        return self.number >= self.comparison.warm_up

    def warm_up(self) -> None:
        """Run what does not count."""
        while not self.is_warm():
            self.run(counts=False)

    def turn(self) -> None:
        """Do a round."""
        self.run(counts=True)

    def close(self) -> None:
        """End, and remove what there is on the disk."""
        shutil.rmtree(self.directory, ignore_errors=True)


class SparkRunner(Runner):
    """A query on Spark.

    Args:
        store: by whose settings it runs; empty: none of its own.
    """

    def __init__(self, comparison: Comparison, name: str, store: str = "") -> None:
        super().__init__(comparison, name, f"{comparison.contenders[name].title}, {store}" if store else "")
        self.store = store
        self.query = f"{name} {store}"
        # All limits share a process: they are no contenders of each other.
        self.process = "limits" if self.contender.kind == "limit" else name
        self.side = comparison.spark(self.process)
        self.side.ask(
            do="begin",
            name=self.query,
            query=name,
            work=comparison.name,
            directory=str(self.directory / "query"),
            settings=dict(comparison.stores.get(store, {})),
        )
        self.last = time.monotonic()

    def measure(self) -> tuple[Round, list[int], list[int]]:
        staged = self.directory / f"{self.number:03}"
        shutil.copytree(self.batches.place(self.number, "parquet"), staged, copy_function=os.link)
        said = self.side.ask(do="step", name=self.query, batch=str(staged))
        self.last = time.monotonic()
        self.comparison.busy_ms[self.process] += said["ms"]
        self.tasks = said["tasks"]
        expected = self.batches.expected(self.number, self.contender.kind)
        return Round(self.batches.length(self.number), said["ms"], said["cpu"]), said["results"], expected

    def is_warm(self) -> bool:
        return super().is_warm() and self.comparison.busy_ms[self.process] >= _WARM_UP_MS

    def turn(self) -> None:
        if self.contender.kind != "spark" and time.monotonic() - self.last > _IDLE:
            self.run(counts=False)
        for _ in range(self.comparison.arguments.batches):
            super().turn()

    def close(self) -> None:
        self.side.ask(do="end", name=self.query)
        super().close()


class FastestStore(Runner):
    """Spark's own, with the state store that is the fastest one in the last micro-batch of the warm-up."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        self.runners = [SparkRunner(comparison, name, store) for store in comparison.arguments.stores]

    def measure(self) -> tuple[Round, list[int], list[int]]:
        return self.runners[0].measure()

    def warm_up(self) -> None:
        # In turns, so that none has a JVM that the others have warmed up.
        rates = [0.0]
        while not all(runner.is_warm() for runner in self.runners):
            rates = [runner.run(counts=False).rate for runner in self.runners]
        fastest = self.runners.pop(rates.index(max(rates)))
        for runner in self.runners:
            runner.close()
        self.runners = [fastest]
        self.comparison.fastest[self.comparison.name] = fastest.store
        self.counted = fastest.counted

    def turn(self) -> None:
        self.runners[0].turn()

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        super().close()


class JobRunner(Runner):
    """PyFlink or Bytewax: a round is a job over the rows of a micro-batch by themselves."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        self.sides = comparison.jobs(name)

    def measure(self) -> tuple[Round, list[int], list[int]]:
        flink = self.contender.kind == "flink"
        sources = self.comparison.job_sources(self, len(self.sides))
        targets = [self.directory / f"{self.number}-{i}" for i in range(len(sources))]
        before = cpu_seconds(os.getpid())
        with ThreadPoolExecutor(len(self.sides)) as threads:
            spec = self.comparison.spec()
            asked = [
                threads.submit(side.ask, spec=spec, source=source, target=str(target))
                for side, source, target in zip(self.sides, sources, targets)
            ]
            said = [no_error(each.result()) for each in asked]
        cpu = None if flink else cpu_seconds(os.getpid()) - before
        done = Round(self.batches.length(self.number), 1000 * max(each["seconds"] for each in said), cpu)
        return done, summary_of(targets), self.batches.all_of(self.number)

    def warm_up(self) -> None:
        self.run(counts=False)
        # The other small ones are not needed: a job has no state.
        self.number = self.comparison.small


def no_error(said: dict[str, Any]) -> dict[str, Any]:
    """Return a side's answer, if it is no error."""
    if "error" in said:
        raise SystemExit(said["error"])
    return said


def summary_of(targets: Iterable[Path]) -> list[int]:
    """Return the summary of what jobs wrote: rows as text, as they are or as PyFlink shows them."""
    lines: list[str] = []
    for target in targets:
        for path in [target] if target.is_file() else target.rglob("*"):
            if path.is_file():
                lines += path.read_text().splitlines()
    rows = [line.rpartition("[")[2].rstrip("]").split(",") for line in lines]
    return summary(list(np.array(rows, np.int64).T)) if rows else [0, 0, 0]
