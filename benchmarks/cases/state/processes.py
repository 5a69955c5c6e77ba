# SPDX-License-Identifier: Apache-2.0
"""The memory of an executor's processes without state: the constants of the formula in ``docs/operations.md``.

A keyed function without state processes micro-batches of 1,000 rows in some state partitions. In the last micro-batch,
it collects garbage, which writes to memory pages that homes have shared until then. For each kind of process (the
PySpark daemon, the starter of homes, workers and homes), the table shows the medians of the kernel's figures: resident
memory (``Rss``), proportional memory (``Pss``), and memory of one process alone (``Private``).

Requires Linux, because it reads /proc. In the last line, ``ratio`` is the private memory of a home divided by a
worker's. ``shared_mb`` is the formula's shared memory: all proportional memory minus the private memory of workers and
homes.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pillarbox
from benchmarks.harness.case import Outcome, Result
from benchmarks.harness.machine import descendants, kind_of_python, memory_mb
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import table
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment

SMALL = {"epochs": 20}
KINDS = ("daemon", "starter", "worker", "home")
FIGURES = {"rss_mb": "Rss:", "pss_mb": "Pss:", "private_mb": "Private_"}


class Collect(KeyedProcessFunction):
    """Collects garbage in the last micro-batch."""

    def open(self, ctx):
        self.has_collected = False

    def process_element(self, row, ctx):
        if row.is_last and not self.has_collected:
            self.has_collected = bool(gc.collect() + 1)
        if row.key < 4:
            yield row.key, os.getpid()


class Processes(SparkSide):
    """A side with one query."""

    def __init__(self, directory: str, slots: int, partitions: int) -> None:
        self._partitions = partitions
        super().__init__(directory, {"spark__sql__shuffle__partitions": str(partitions)}, slots=slots)

    def run(self, epochs: int) -> dict[str, list[dict[str, float]]]:
        """Run the query. Returns the memory of each process at the query's end, by kind of process."""
        folder, spark = self.directory, self.spark
        (folder / "in").mkdir(parents=True)
        rng = np.random.default_rng(1)
        for epoch in range(epochs):
            rows = {"key": rng.integers(0, 10_000, 1_000), "is_last": np.full(1_000, epoch == epochs - 1)}
            pq.write_table(pa.table(rows), folder / "in" / f"{epoch:04}.parquet")
        read = spark.readStream.schema("key LONG, is_last BOOLEAN").option("maxFilesPerTrigger", 1)
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(self._partitions)
        env.set_max_parallelism(self._partitions)
        stream = env.from_dataframe(read.parquet(str(folder / "in"))).key_by("key").process(Collect()).uid("collect")
        processes: dict[str, list[dict[str, float]]] = {}

        def take(batch: Any, number: int) -> None:
            batch.collect()
            if number < epochs - 1:
                return
            for pid in descendants(os.getpid()):
                kind = kind_of_python(pid)
                if kind is not None:
                    figures = {name: memory_mb(pid, line) for name, line in FIGURES.items()}
                    processes.setdefault(kind, []).append(figures)

        writer = stream.to_dataframe("key LONG, pid LONG").writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        pillarbox.start(writer).awaitTermination()
        return processes


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=8)


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    side = Side(Processes, directory=directory / "query", slots=arguments.slots, partitions=arguments.partitions)
    by_kind = side.ask("run", epochs=arguments.epochs)
    side.close()
    kinds = {
        kind: {
            "processes": len(by_kind[kind]),
            **{name: round(statistics.median(figures[name] for figures in by_kind[kind]), 1) for name in FIGURES},
        }
        for kind in KINDS
        if kind in by_kind
    }
    all_ = sum(figures["pss_mb"] for processes in by_kind.values() for figures in processes)
    alone = sum(figures["private_mb"] for kind in ("worker", "home") for figures in by_kind.get(kind, ()))
    ratio = kinds["home"]["private_mb"] / kinds["worker"]["private_mb"]
    return Outcome("processes", ratio, {"shared_mb": round(all_ - alone), "pss_mb": round(all_), "kinds": kinds})


def present(result: Result, charts: Path | None) -> str:
    columns = ("processes", *FIGURES)
    rows = [[kind, *(f"{figures[name]:,}" for name in columns)] for kind, figures in result["kinds"].items()]
    return table(["", *columns], [*rows, ["shared", "", "", f"{result['shared_mb']:,}", ""]])


BLOCKS: dict[str, Any] = {}
