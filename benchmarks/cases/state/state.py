# SPDX-License-Identifier: Apache-2.0
"""The cost of state in an epoch, which must depend on the keys that the epoch changes, not on all keys.

Two jobs run the same epochs of 1,000 records with 1,000 different keys, in turn, each in its own process. One has
10,000 keys in its state, the other 2,000,000. Each record changes its key's count, and moves the key's event-time
timer. Before that, every key is written once, followed twice by as many random keys. So both logs have reached the
length at which epochs clean up, and contain both current and outdated entries. The results are medians. Means are also
shown, because the cleaning is done in portions.

More keys take more memory, more of which is outside of the processor's caches. To show this effect alone, the same
changes are made to a plain dictionary of lists.

It runs on the local runtime, without Spark. With ``--spark``, it runs on Spark, and compares whole micro-batches, most
of which is Spark's own time. In the last line, ``ratio`` is the time of an epoch at 2,000,000 keys divided by the time
at 10,000, and ``bytes_ratio`` the same for the bytes written.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.case import Block, Outcome, Result, Results
from benchmarks.harness.machine import memory_kib
from benchmarks.harness.process import Side
from benchmarks.harness.rows import HOUR, write_halves
from benchmarks.harness.stepped import SparkSide, SteppedQuery, step_settings, task_reports
from benchmarks.harness.turns import medians, rounded, table, turns
from benchmarks.peers.counts import CountWithTimer
from benchmarks.report.words import paragraph, times
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob

LOAD = 100_000
WARM_UP = 5
SMALL = {"few": 2_000, "many": 50_000, "touched": 200, "memory": "1g"}


class Epochs:
    """The keys of each epoch. First every key once, then as many random keys, twice; then a few random keys."""

    def __init__(self, keys: int, touched: int) -> None:
        self._random = np.random.default_rng(1)
        self._keys = keys
        self._touched = touched

    def load(self, most: int = LOAD) -> list[npt.NDArray[np.int64]]:
        """Return the keys of at least a dozen epochs with at most ``most`` records each."""
        drawn = self._random.integers(0, self._keys, 2 * self._keys)
        order = np.concatenate([self._random.permutation(self._keys), drawn])
        step = min(most, len(order) // 12)
        return [order[start : start + step] for start in range(0, len(order), step)]

    def touch(self) -> npt.NDArray[np.int64]:
        return self._random.choice(self._keys, self._touched, replace=False)


class Local:
    """A side on the local runtime, with some keys in its state."""

    def __init__(self, keys: int, touched: int) -> None:
        self._keys = keys
        self._touched = touched
        self._epochs = Epochs(keys, touched)
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = env.from_collection([]).assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[1])
        )
        stream.key_by(lambda record: record[0]).process(CountWithTimer(HOUR))
        program = env.get_execution_graph()
        (self._source,) = program.sources
        self._job = LocalJob(program)
        self._job.__enter__()

    def _run(self, touch: npt.NDArray[np.int64]) -> tuple[float, float]:
        records = Records([(key, self._job.epoch) for key in touch.tolist()])
        started, started_cpu = time.perf_counter(), time.process_time()
        self._job.run_epoch({self._source: [[records]]})
        return time.perf_counter() - started, time.process_time() - started_cpu

    def load(self) -> dict[str, Any]:
        """Fill the state. Returns a key's bytes in memory and in the log."""
        before = _rss()
        for touch in self._epochs.load():
            self._run(touch)
        gc.collect()
        (store,) = self._job.savepoint().values()
        log = sum(map(len, store.chunks.values()))
        return {"bytes_per_key": (_rss() - before - log) / self._keys, "log_bytes_per_key": log / self._keys}

    def epoch(self) -> dict[str, Any]:
        """Run an epoch."""
        seconds, cpu = self._run(self._epochs.touch())
        (task,) = (task for task in self._job.reports if task.level == 1)
        return {"ms": seconds * 1000, "cpu_ms": cpu * 1000, "bytes": task.state_bytes_written}

    def plain(self) -> dict[str, Any]:
        """Change keys of a plain dictionary."""
        return {"ns": _plain_dictionary(self._epochs, self._keys, self._touched)}

    def close(self) -> None:
        """Close the job."""
        self._job.__exit__(None, None, None)


def _plain_dictionary(epochs: Epochs, keys: int, touched: int) -> float:
    """Change keys of a plain dictionary, to measure the effect of caches and memory alone.

    Returns:
        nanoseconds to look up a key's list and change an item of it.
    """
    rows: dict[int, list[Any]] = {int(key): [0, 0, None] for key in np.random.default_rng(2).permutation(keys)}
    rounds = []
    for _ in range(50):
        touch = epochs.touch().tolist()
        started = time.perf_counter()
        for key in touch:
            row = rows[key]
            row[1] += 1
        rounds.append(time.perf_counter() - started)
    return statistics.median(rounds) / touched * 1e9


def _rss() -> int:
    (kib,) = memory_kib(os.getpid(), "VmRSS")
    return kib * 1024


class OnSpark(SparkSide):
    """The same on Spark."""

    def __init__(self, keys: int, touched: int, directory: str, memory: str) -> None:
        super().__init__(directory, step_settings(memory))
        self._epochs = Epochs(keys, touched)
        self._number = 0
        self._query = SteppedQuery(self.spark, self.directory, "key INT, ts LONG")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        stream = env.from_dataframe(self._query.source).assign_timestamps_and_watermarks(strategy)
        self._query.start(stream.key_by("key").process(CountWithTimer(HOUR)).to_dataframe("key INT, n LONG"))

    def _run(self, touch: npt.NDArray[np.int64]) -> dict[str, Any]:
        ts = np.full(len(touch), self._number)
        path = self.directory / "staging" / f"{self._number:04}"
        self._number += 1
        progress = self._query.step(write_halves(path, key=touch.astype(np.int32), ts=ts))
        tasks = task_reports(progress)
        return {
            "ms": progress.durationMs["triggerExecution"],
            "cpu_ms": sum(task.busy_ms + task.state_ms for task in tasks),
            "state_ms": max(task.state_ms for task in tasks),
            "bytes": sum(task.state_bytes_written or 0 for task in tasks),
            "in_step": all(task.state_sync == "in step" for task in tasks),
        }

    def load(self) -> None:
        """Fill the state."""
        for touch in self._epochs.load(5 * LOAD):
            self._run(touch)

    def epoch(self) -> dict[str, Any]:
        """Run a micro-batch."""
        return self._run(self._epochs.touch())

    def close(self) -> None:
        """Stop the query and Spark."""
        self._query.stop()
        super().close()


# -- both sides --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--few", type=int, default=10_000, help="keys in the state of the small job")
    parser.add_argument("--many", type=int, default=2_000_000, help="keys in the state of the large job")
    parser.add_argument("--touched", type=int, default=1_000, help="keys that an epoch touches")
    parser.add_argument("--epochs", type=int, default=0, help="epochs that count (default 100; 20 on Spark)")
    parser.add_argument("--spark", action="store_true", help="on Spark, not on the local runtime")
    parser.add_argument("--memory", default="2g", help="of each Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    count = arguments.epochs or (20 if arguments.spark else 100)
    few, many = arguments.few, arguments.many
    sides = {}
    for keys in (few, many):
        on_spark = {"directory": directory / str(keys), "memory": arguments.memory} if arguments.spark else {}
        kind = OnSpark if arguments.spark else Local
        sides[keys] = Side(kind, keys=keys, touched=arguments.touched, **on_spark)
    loaded = {keys: side.ask("load") for keys, side in sides.items()}
    epochs: dict[int, list[dict[str, Any]]] = {keys: [] for keys in sides}
    for index, keys in turns(sides, count, WARM_UP):
        answer = sides[keys].ask("epoch")
        if index >= 0:
            epochs[keys].append(answer)

    def ratio(what: str, of: Any = statistics.median) -> float:
        values = {keys: of([answer[what] for answer in epochs[keys]]) for keys in sides}
        return float(values[many] / max(values[few], 1e-9))

    usual = medians({keys: [answer["ms"] for answer in epochs[keys]] for keys in sides})
    figures = {
        "bytes_ratio": round(ratio("bytes", statistics.mean), 3),
        "mean_ratio": round(ratio("ms", statistics.mean), 3),
        "cpu_ratio": round(ratio("cpu_ms"), 3),
        "epoch_ms": rounded(usual, 3),
        "epoch_bytes": rounded({keys: statistics.mean(answer["bytes"] for answer in epochs[keys]) for keys in sides}),
        **(_on_spark(epochs) if arguments.spark else {}),
        "touched": arguments.touched,
        "epochs": count,
    }
    if not arguments.spark:
        plain = {keys: side.ask("plain")["ns"] for keys, side in sides.items()}
        figures["plain_dict_ratio"] = round(plain[many] / plain[few], 2)
        figures["memory_bytes_per_key"] = round(loaded[many]["bytes_per_key"])
        figures["log_bytes_per_key"] = round(loaded[many]["log_bytes_per_key"])
    for side in sides.values():
        side.close()
    return Outcome("state_spark" if arguments.spark else "state", ratio("ms"), figures)


def _on_spark(epochs: dict[int, list[dict[str, Any]]]) -> Result:
    """Return the durations of reading and writing state, and how many epochs found their state in memory."""
    return {
        "state_ms": rounded(medians({keys: [epoch["state_ms"] for epoch in all_] for keys, all_ in epochs.items()})),
        "in_step": {keys: sum(epoch["in_step"] for epoch in all_) for keys, all_ in epochs.items()},
    }


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    return _table([(result, "on Spark" if result["name"] == "state_spark" else "the task alone")])


def _table(runs: list[tuple[Result, str]]) -> str:
    rows = []
    for result, what in runs:
        few, many = sorted(result["epoch_ms"], key=int)
        rows.append(
            [
                f"an epoch of {result['touched']:,} keys, {what}",
                f"{result['epoch_ms'][few]:,.1f} at {int(few):,} keys",
                f"{result['epoch_ms'][many]:,.1f} at {int(many):,} keys",
                f"{result['ratio']:.2f}",
                f"{result['bytes_ratio']:.2f}",
            ]
        )
    return table(["milliseconds", "few", "many", "ratio", "ratio of bytes written"], rows)


def both(results: Results) -> str:
    return _table([(results["state-spark"], "on Spark"), (results["state"], "the task alone")])


def in_words(results: Results) -> str:
    result = results["state"]
    few, many = sorted(map(int, result["epoch_ms"]))
    longer = result["epoch_ms"][str(many)] - result["epoch_ms"][str(few)]
    return paragraph(
        "The task alone shows the processor's caches: to touch a key of a plain dictionary of lists takes"
        f" {times(result['plain_dict_ratio'])} times as long with {many:,} keys as with {few:,}."
        f" An epoch takes {longer:.1f} ms longer; a micro-batch on Spark takes"
        f" {results['state-spark']['epoch_ms'][str(many)]:.0f} ms."
    )


BLOCKS = {
    "state": Block(both, ("state-spark", "state"), commands=True),
    "state in words": Block(in_words, ("state-spark", "state")),
}
