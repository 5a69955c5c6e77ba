# SPDX-License-Identifier: Apache-2.0
"""The time to reproduce the failure of a task at a late record of an epoch.

A query with one keyed subtask reads one epoch of many rows, and its function fails at record number ``--fails-at``. Two
ways to reproduce the failure take turns, each in a new process:

  replay  ``pillarbox replay`` of the task's recording, in a process without Java
  spark   a restart of the program on the checkpoint: a Spark session, and the epoch up to the failure

The time covers the whole process, from start to end. Both must fail with the same exception, key, record and record
number. The duration of ``pillarbox.record`` and the size of the recording are also printed.

In the last line, ``ratio`` is the time of ``replay`` divided by the time of ``spark``, and ``seconds`` has both times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

import pillarbox
from benchmarks.harness.case import Block, Outcome, Result
from benchmarks.harness.process import ROOT, SOURCE, Side
from benchmarks.harness.stepped import SparkSide
from benchmarks.harness.turns import extent, rounded, table, turns
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor
from pillarbox._reports.failure import Failure

KEYS = 10_000
SMALL = {"rows": 20_000, "fails_at": 14_001, "rounds": 1}
BLOCKS: dict[str, Block] = {}
# Fields that must be equal in both ways.
AGREE = ("cause", "key", "record", "number")


class Count(KeyedProcessFunction):
    """Counts the rows of a key. A negative amount is an error."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, row, ctx):
        if row.amount < 0:
            raise ValueError(f"an amount of {row.amount}")
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row.key, n


class Failing(SparkSide):
    """The failing query, with all its files in one directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, {"spark__driver__memory": "1g"})

    def _writer(self) -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(1).set_max_parallelism(1)
        rows = self.spark.readStream.schema("key LONG, amount LONG").parquet(str(self.directory / "rows"))
        counts = env.from_dataframe(rows).key_by("key").process(Count()).uid("count")
        return counts.to_dataframe("key LONG, n LONG").writeStream.format("noop")

    def fail(self) -> dict[str, Any]:
        """Run the query until it fails. Returns the failure."""
        query = pillarbox.start(self._writer().option("checkpointLocation", str(self.directory / "checkpoint")))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            failure = Failure.of_text(str(error))
            assert failure is not None, error
            return {"failure": vars(failure)}
        raise AssertionError("the query has not failed")

    def record(self, recording: str) -> dict[str, Any]:
        """Record the failed task. Returns the duration (seconds)."""
        began = time.perf_counter()
        pillarbox.record(self._writer(), recording, checkpointLocation=str(self.directory / "checkpoint"))
        return {"seconds": time.perf_counter() - began}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the epoch")
    parser.add_argument("--fails-at", type=int, default=700_001, help="the number of the record that fails, from 1")
    parser.add_argument("--rounds", type=int, default=3)


def write_rows(directory: Path, rows: int, fails_at: int) -> None:
    """Write the epoch's rows, including the wrong row."""
    random = np.random.default_rng(7)
    amounts = random.integers(1, 100, rows)
    amounts[fails_at - 1] = -5
    (directory / "rows").mkdir()
    pq.write_table(
        pa.table({"key": random.integers(0, KEYS, rows), "amount": amounts}), directory / "rows" / "1.parquet"
    )


def replay(recording: Path) -> dict[str, Any]:
    """Replay the recording in a process without Java. Returns its failure."""
    without = {**os.environ, "JAVA_HOME": "/none", "PATH": "/none", "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pillarbox", "replay", str(recording), "--diff", "--json"]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the replay differs from what was recorded:\n{done.stdout}{done.stderr}")
    failure: dict[str, Any] = json.loads(done.stdout)["failure"]
    return failure


def again(directory: Path) -> dict[str, Any]:
    """Restart the program in a new process. Returns its failure."""
    side = Side(Failing, directory=str(directory))
    failure: dict[str, Any] = side.ask("fail")["failure"]
    side.close()
    return failure


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    write_rows(directory, arguments.rows, arguments.fails_at)
    recording = directory / "recording"
    side = Side(Failing, directory=str(directory))
    noted = side.ask("fail")["failure"]
    recorded = side.ask("record", recording=str(recording))["seconds"]
    side.close()
    print(f"recorded in {recorded:.1f} s: record {noted['number']:,} of {arguments.rows:,} fails", flush=True)
    wrong = [] if noted["number"] == arguments.fails_at else [f"record {noted['number']}, not {arguments.fails_at}"]
    took: defaultdict[str, list[float]] = defaultdict(list)
    for index, way in turns(("replay", "spark"), arguments.rounds, 0):
        began = time.perf_counter()
        failure = replay(recording) if way == "replay" else again(directory)
        took[way].append(time.perf_counter() - began)
        print(f"round {index}  {way:8}{took[way][-1]:8.2f} s", flush=True)
        wrong += [f"{way}: {name} is {failure[name]}" for name in AGREE if failure[name] != noted[name]]
    seconds = {way: statistics.median(samples) for way, samples in took.items()}
    mib = sum(path.stat().st_size for path in recording.iterdir()) / 2**20
    figures = {
        "rows": arguments.rows,
        "fails_at": arguments.fails_at,
        "seconds": rounded(seconds, 2),
        "spread": rounded({way: [min(samples), max(samples)] for way, samples in took.items()}, 2),
        "record_seconds": round(recorded, 2),
        "recording_mib": round(mib, 1),
    }
    return Outcome("replay", seconds["replay"] / seconds["spark"], figures, wrong)


def present(result: Result, charts: Path | None) -> str:
    rows = [(way, f"{result['seconds'][way]:.2f}", extent(result["spread"][way], 2)) for way in ("replay", "spark")]
    return table(("way", "seconds", "lowest and highest"), rows)
