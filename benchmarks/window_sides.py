# SPDX-License-Identifier: Apache-2.0
"""The sides of ``bench_windows.py``: how each is run. See there for what they are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.environments import Environment, PeerSide
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
from benchmarks.window_work import QUERIES, SCHEMA, SMALL, WORKS
from pillarbox.runtime.spark.session import local_session

if TYPE_CHECKING:
    from benchmarks.bench_windows import Comparison

PATHWAY = Environment("Pathway", "pathway", ("pathway==0.33.0",), "600 MB")
BYTEWAX = Environment("Bytewax", "bytewax", ("bytewax==0.21.1", "pyarrow"), "200 MB")
# After this many seconds Spark may have ended idle Python workers, or will before the next micro-batch is through.
IDLE = 45
_STORE = "spark.sql.streaming.stateStore."
STORES = {
    "spark-rocksdb": {
        _STORE + "providerClass": STATE_STORE,
        _STORE + "checkpointFormatVersion": "2",
        _STORE + "rocksdb.trackTotalNumberOfRows": "false",
    },
    "spark-hdfs": {
        _STORE + "providerClass": STATE_STORE.replace("RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"),
        _STORE + "checkpointFormatVersion": "1",
    },
}


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


OURS = {
    "columnar": Contender("pillarbox, columnar", "ours"),
    "python": Contender("pillarbox, Python", "ours"),
}
PEERS = {
    "spark": Contender("Spark's own", "spark"),
    "thread": Contender(
        "PyFlink, thread mode", "flink", {"tumbling": 5, "tumbling-10k": 5, "sliding": 200, "sessions": 10}
    ),
    "process": Contender(
        "PyFlink, process mode", "flink", {"tumbling": 50, "tumbling-10k": 50, "sliding": 1_000, "sessions": 100}
    ),
    "pathway": Contender("Pathway", "pathway", {"sliding": 200, "sessions": 10}),
    "bytewax": Contender("Bytewax", "bytewax", {"tumbling": 5, "tumbling-10k": 5, "sliding": 20, "sessions": 10}),
    "two-hops": Contender("(identity, two hops)", "limit"),
    "one-hop": Contender("(identity, one hop)", "limit"),
}
CONTENDERS = {**OURS, **PEERS}
# Which process runs it: both stores, and both limits, share one.
PROCESSES = {"spark-rocksdb": "spark", "spark-hdfs": "spark", "two-hops": "limits", "one-hop": "limits"}


# -- on Spark, in a process of its own --


def serve(directory: Path, memory: str) -> None:
    """Run queries over micro-batches that come when they are asked for."""
    spark = local_session(SUBTASKS, **step_settings(directory, memory))
    queries: dict[str, SteppedQuery] = {}
    for question in questions():
        name = question["query"]
        if question["do"] == "begin":
            for setting, value in STORES.get(name, {}).items():
                spark.conf.set(setting, value)
            queries[name] = query = SteppedQuery(spark, Path(question["directory"]), SCHEMA)
            query.start(observed(QUERIES[name](query.source, WORKS[question["work"]])))
            answer()
        elif question["do"] == "end":
            queries.pop(name).stop()
            answer()
        else:
            before = cpu_seconds(os.getpid())
            progress = queries[name].step(question["batch"])
            answer(
                rows=progress.numInputRows,
                ms=progress.durationMs["triggerExecution"],
                cpu=cpu_seconds(os.getpid()) - before,
                results=[value or 0 for value in progress.observedMetrics["results"]],
                tasks=[{name: task[name] for name in TASK_METRICS} for task in task_reports(progress)],
            )
    spark.stop()


# -- in the benchmark's process --

# Works and sides of others, with a defect of theirs: its results are reported, and fail nothing (see window_flink.py).
KNOWN_TO_BE_WRONG = {("sessions", "thread")}


class Runner(ABC):
    """A side in a work."""

    def __init__(self, comparison: Comparison, name: str, label: str = "") -> None:
        self.comparison = comparison
        self.name = name
        self.title = label or CONTENDERS[name].title
        self.batches = comparison.batches(CONTENDERS[name].share.get(comparison.name, 1))
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
            known = (self.comparison.name, self.name) in KNOWN_TO_BE_WRONG
            lines = self.comparison.known_wrong if known else self.comparison.wrong
            lines.append(f"{self.comparison.name}, {self.title}, number {self.number}: {results}, not {expected}")
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
        for _ in range(SMALL + self.comparison.work.full_warm_up):
            self.run(counts=False)

    def turn(self) -> None:
        """Do a round."""
        for _ in range(self.comparison.arguments.batches):
            self.run(counts=True)

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class SparkRunner(Runner):
    """A query on Spark."""

    def __init__(self, comparison: Comparison, name: str, query: str = "", label: str = "") -> None:
        super().__init__(comparison, name, label)
        self.query = query or name
        self.late = CONTENDERS[name].kind == "spark"
        self.side = comparison.spark(PROCESSES.get(self.query, self.query))
        self.side.ask(do="begin", query=self.query, work=comparison.name, directory=str(self.directory / "query"))
        self.last = time.monotonic()

    def measure(self) -> tuple[Round, list[int], list[int]]:
        staged = self.directory / f"{self.number:03}"
        shutil.copytree(self.batches.place(self.number, "parquet"), staged, copy_function=os.link)
        said = self.side.ask(do="step", query=self.query, batch=str(staged))
        self.last = time.monotonic()
        self.tasks = said["tasks"]
        if CONTENDERS[self.name].kind == "limit":
            expected = summary(self.batches.batch(self.number))
        else:
            expected = self.batches.expected(self.number, late=self.late)
        return Round(said["rows"], said["ms"], said["cpu"]), said["results"], expected

    def turn(self) -> None:
        if not self.late and time.monotonic() - self.last > IDLE:
            self.run(counts=False)
        super().turn()

    def close(self) -> None:
        self.side.ask(do="end", query=self.query)
        super().close()


class FasterStore(Runner):
    """Spark's own windows, with the state store that is the faster one at the end of the warm-up."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        self.runners = [
            SparkRunner(comparison, name, query, f"{self.title}, {query.partition('-')[2]}") for query in STORES
        ]

    def measure(self) -> tuple[Round, list[int], list[int]]:
        return self.runners[0].measure()

    def warm_up(self) -> None:
        # In turns, so that neither has a JVM that the other one has warmed up.
        for _ in range(SMALL + self.comparison.work.full_warm_up):
            rates = [runner.run(counts=False).rate for runner in self.runners]
        fastest = self.runners.pop(rates.index(max(rates)))
        for runner in self.runners:
            runner.close()
        self.runners = [fastest]
        self.comparison.stores[self.comparison.name] = fastest.query
        self.counted = fastest.counted

    def turn(self) -> None:
        self.runners[0].turn()

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        super().close()


class PathwayRunner(Runner):
    """Pathway, with a process for each work."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        source = self.directory / "in"
        source.mkdir()
        spec = json.dumps(comparison.spec())
        self.side = PeerSide(
            PATHWAY.make(comparison.place(PATHWAY)),
            "window_pathway.py",
            "--spec",
            spec,
            "--source",
            str(source),
            env={"PATHWAY_THREADS": str(SUBTASKS)},
        )

    def measure(self) -> tuple[Round, list[int], list[int]]:
        staged = self.directory / f"{self.number:03}.csv"
        os.link(self.batches.place(self.number, "csv-whole") / "rows.csv", staged)
        expected = self.batches.emitted_until(self.number)
        said = no_error(self.side.ask(batch=str(staged), expected=expected))
        return Round(self.batches.length(self.number), said["ms"], said["cpu"]), said["results"], expected

    def close(self) -> None:
        self.side.close()
        super().close()


class JobRunner(Runner):
    """PyFlink or Bytewax: a round is a job over the rows of a micro-batch by themselves."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        self.sides = comparison.jobs(name)

    def measure(self) -> tuple[Round, list[int], list[int]]:
        flink = CONTENDERS[self.name].kind == "flink"
        place = self.batches.place(self.number, "csv" if flink else "parquet")
        halves = [place / str(i) if flink else place / f"{i}.parquet" for i in range(SUBTASKS)]
        sources = halves if len(self.sides) == SUBTASKS else [place]
        targets = [self.directory / f"{self.number}-{i}" for i in range(len(sources))]
        before = cpu_seconds(os.getpid())
        with ThreadPoolExecutor(len(self.sides)) as threads:
            spec = self.comparison.spec()
            asked = [
                threads.submit(side.ask, spec=spec, source=str(source), target=str(target))
                for side, source, target in zip(self.sides, sources, targets)
            ]
            said = [no_error(each.result()) for each in asked]
        cpu = None if flink else cpu_seconds(os.getpid()) - before
        done = Round(self.batches.length(self.number), 1000 * max(each["seconds"] for each in said), cpu)
        return done, summary_of(targets), self.batches.all_of(self.number)

    def warm_up(self) -> None:
        self.run(counts=False)
        # The other small one is not needed: a job has no state.
        self.number = SMALL


def no_error(said: dict[str, Any]) -> dict[str, Any]:
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
