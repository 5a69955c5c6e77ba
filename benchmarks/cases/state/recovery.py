# SPDX-License-Identifier: Apache-2.0
"""The duration of a restart until the first output, by the number of keys in state.

Each key has two values and an event-time timer. Before the restart, every key is written once, followed twice by as
many random keys. So the state log has reached the length at which it is cleaned, and contains outdated entries.

On the local runtime, without Spark: a new job loads the log's chunks from a file, and runs an epoch of 1,000 records,
each of which emits its key's count. It is compared with ``pickle.loads`` of the same chunks from the same file, with
the garbage collector off, and without any use of the result; no reader can be faster. The two take turns in one
process, with two kinds of timers: spread over an hour in milliseconds, so that hardly any two have the same time; and
at full minutes, like the timers of windows.

On Spark: a query is loaded and stopped, and its process ends. A new process restarts the query from its checkpoint,
with new Python workers and a new Java, and one micro-batch waiting. The result is the time from building the query to
the first rows at the sink. Most of that is Spark's own first micro-batch, so there is also a query with 1,000 keys.

The results are checked: each emitted row must have its key's count of all rows so far.

In the last line, ``ratio`` is the job's cold start at 1,000,000 keys divided by ``pickle.loads`` of the chunks, the
larger for both kinds of timers.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame

from benchmarks.harness.case import Block, Outcome, Result, Results, shown
from benchmarks.harness.process import Side
from benchmarks.harness.rows import HOUR, MINUTE, write_halves
from benchmarks.harness.stepped import SparkSide, SteppedQuery, run_to_the_end, step_settings, task_reports
from benchmarks.harness.turns import extent, medians, rounded, table, turns
from benchmarks.peers.counts import CountWithTimer
from benchmarks.report.charts import draw_lines
from benchmarks.report.words import page, paragraph, times
from pillarbox import StreamExecutionEnvironment
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.store import MemoryChunkStore

TIMERS = {"spread": "timers by the millisecond", "minutes": "timers at full minutes"}
FEW = 1_000
TOUCHED = 1_000
OUTPUT = "key INT, n LONG"
SMALL = {"keys": 50_000, "rounds": 2, "spark_keys": [10_000], "restarts": 1, "memory": "1g"}


class Rows:
    """Rows of keys and their timers' times, always the same for a number of keys."""

    def __init__(self, keys: int, timers: str) -> None:
        random = np.random.default_rng(1)
        self._random = random
        self._keys = keys
        self._unit = MINUTE if timers == "minutes" else 1
        self._order = np.concatenate([random.permutation(keys), random.integers(0, keys, 2 * keys)])
        self.counts = np.bincount(self._order, minlength=keys)

    def _at(self, count: int) -> npt.NDArray[np.int64]:
        return self._random.integers(0, HOUR, count) // self._unit * self._unit + HOUR

    def load(self, most: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield at least a dozen epochs of at most ``most`` rows."""
        step = min(most, len(self._order) // 12)
        for start in range(0, len(self._order), step):
            keys = self._order[start : start + step]
            yield keys, self._at(len(keys))

    def touch(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        keys = self._random.choice(self._keys, min(TOUCHED, self._keys), replace=False)
        return keys, self._at(len(keys))


def agrees(out: list[Any], touched: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> bool:
    """Return whether each key was emitted with its stored count plus one."""
    return sorted(map(tuple, out)) == sorted((key, int(counts[key]) + 1) for key in touched.tolist())


# -- the task alone, in its own process --


def local_job(savepoint: Savepoint | None = None) -> LocalJob:
    env = StreamExecutionEnvironment.get_execution_environment()
    counts = env.from_collection([]).key_by(lambda row: row[0]).process(CountWithTimer(0, at_once=True)).uid("count")
    return env.local_job(counts=counts, savepoint=savepoint)


def run_epoch(job: LocalJob, keys: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> list[Any]:
    (source,) = job.program.sources
    return job.run_epoch({source: [[Records(list(zip(keys.tolist(), at.tolist())))]]})["counts"]


class Alone:
    """A side on the local runtime, with the chunks of a task's log in a file."""

    def __init__(self, keys: int, timers: str, directory: str) -> None:
        self._keys = keys
        self._rows = Rows(keys, timers)
        with local_job() as job:
            for touch in self._rows.load(100_000):
                run_epoch(job, *touch)
            ((self._place, store),) = job.savepoint().items()
        Path(directory).mkdir()
        self._log = Path(directory) / "log"
        self._lengths = {number: len(chunk) for number, chunk in store.chunks.items()}
        self._log.write_bytes(b"".join(store.chunks.values()))

    def _read(self) -> dict[int, bytes]:
        with self._log.open("rb") as file:
            return {number: file.read(length) for number, length in self._lengths.items()}

    def plain(self) -> dict[str, Any]:
        """Load the chunks with ``pickle.loads``, without the log's head."""
        gc.collect()
        gc.disable()
        started = time.perf_counter()
        loaded = [pickle.loads(chunk) for number, chunk in self._read().items() if number > 0]
        seconds = time.perf_counter() - started
        gc.enable()
        entries = sum(len(chunk["rows"]) for chunk in loaded)
        return {"seconds": seconds, "entries": entries, "bytes": sum(self._lengths.values())}

    def cold(self) -> dict[str, Any]:
        """Start a job from the chunks, and run an epoch."""
        touched, at = self._rows.touch()
        gc.collect()
        started = time.perf_counter()
        store = MemoryChunkStore()
        store.chunks = self._read()
        out = run_epoch(local_job({self._place: store}), touched, at)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "agrees": agrees(out, touched, self._rows.counts)}


# -- on Spark --


class OnSpark(SparkSide):
    """A side that loads a query, or restarts it."""

    def __init__(self, keys: int, directory: str, memory: str) -> None:
        super().__init__(directory, step_settings(memory))
        self._rows = Rows(keys, "spread")
        self._query = SteppedQuery(self.spark, self.directory, "key INT, at LONG")

    def _result(self) -> DataFrame:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        counts = env.from_dataframe(self._query.source).key_by("key").process(CountWithTimer(0, at_once=True))
        return counts.uid("count").to_dataframe(OUTPUT)

    def load(self) -> None:
        """Fill the state, and stop the query."""
        self._query.start(self._result())
        for number, (keys, at) in enumerate(self._rows.load(500_000)):
            path = self.directory / "staging" / f"load-{number:04}"
            self._query.step(write_halves(path, key=keys.astype(np.int32), at=at))
        self._query.stop()

    def restart(self, number: int) -> dict[str, Any]:
        """Restart the query, with a micro-batch waiting. Returns the seconds until its first rows."""
        for _ in range(number + 1):
            # Each restart has different keys, and its counts include the rows of earlier restarts.
            touched, at = self._rows.touch()
            self._rows.counts[touched] += 1
        self._rows.counts[touched] -= 1
        write_halves(self.directory / "in" / f"restart-{number:04}", key=touched.astype(np.int32), at=at)
        seconds, out, restarted = run_to_the_end(self._result, self.directory / "checkpoint")
        (progress,) = (candidate for candidate in restarted.recentProgress if candidate.numInputRows)
        tasks = task_reports(progress)
        return {
            "seconds": seconds,
            "agrees": agrees(out, touched, self._rows.counts),
            "state_ms": max(task.state_ms for task in tasks),
            "loaded": all(task.state_sync == "loaded" for task in tasks),
            "keys": sum(task.keys or 0 for task in tasks),
        }


# -- the comparison --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the task alone")
    parser.add_argument("--rounds", type=int, default=5, help="cold starts of the task alone that count")
    parser.add_argument("--spark-keys", type=int, nargs="*", default=[100_000, 1_000_000], help="none: without Spark")
    parser.add_argument("--restarts", type=int, default=3, help="restarts on Spark for each number of keys")
    parser.add_argument("--memory", default="2g", help="of Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    wrong: list[str] = []
    keys = arguments.keys
    alone = {timers: measure_alone(arguments, directory / timers, timers, wrong) for timers in TIMERS}
    cold, plain = (medians({timers: figures[what] for timers, figures in alone.items()}) for what in ("cold", "plain"))
    ratios = {timers: cold[timers] / plain[timers] for timers in TIMERS}
    more: dict[str, Any] = {}
    if sizes := arguments.spark_keys:
        restarts = {size: measure_spark(arguments, directory / str(size), size, wrong) for size in [FEW, *sizes]}
        state_ms = medians({size: [answer["state_ms"] for answer in answers] for size, answers in restarts.items()})
        more = {
            "spark_restart_s": {
                size: [round(answer["seconds"], 2) for answer in answers] for size, answers in restarts.items()
            },
            "spark_state_s": rounded({size: milliseconds / 1000 for size, milliseconds in state_ms.items()}, 3),
        }
    summary = {
        "ratios": rounded(ratios, 3),
        "us_per_key": {timers: round(cold[timers] / keys * 1e6, 3) for timers in TIMERS},
        "entries_per_key": {timers: round(figures["entries"] / keys, 2) for timers, figures in alone.items()},
        "log_bytes_per_key": {timers: round(figures["bytes"] / keys) for timers, figures in alone.items()},
        "keys": keys,
        **more,
    }
    return Outcome("recovery", max(ratios.values()), summary, wrong)


def measure_alone(arguments: argparse.Namespace, path: Path, timers: str, wrong: list[str]) -> dict[str, Any]:
    side = Side(Alone, keys=arguments.keys, timers=timers, directory=path)
    print(f"{arguments.keys:,} keys, {TIMERS[timers]}: writing them", flush=True)
    figures: dict[str, Any] = {"plain": [], "cold": []}
    for index, what in turns(("plain", "cold"), arguments.rounds):
        answer = side.ask(what)
        if not answer.get("agrees", True):
            wrong.append(f"the task alone, {TIMERS[timers]}, round {index}")
        if index >= 0:
            figures[what].append(answer["seconds"])
        print(f"  round {index + 1} of {arguments.rounds}, {what}: {answer['seconds']:.2f} s", flush=True)
        figures.update({name: answer[name] for name in ("entries", "bytes") if name in answer})
    side.close()
    return figures


def measure_spark(arguments: argparse.Namespace, path: Path, keys: int, wrong: list[str]) -> list[dict[str, Any]]:
    restarts = []
    for number in range(-1, arguments.restarts):
        side = Side(OnSpark, keys=keys, directory=path, memory=arguments.memory)
        if number < 0:
            side.ask("load")
        else:
            answer = side.ask("restart", number=number)
            if not (answer["agrees"] and answer["loaded"] and answer["keys"] == keys):
                wrong.append(f"restart {number} with {keys:,} keys: {answer}")
            restarts.append(answer)
        side.close()
    return restarts


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    alone = [
        [f"timers {kind}", f"{result['us_per_key'][kind]:.2f}", f"{ratio:.2f}"]
        for kind, ratio in result["ratios"].items()
    ]
    restarts, reading = medians(result.get("spark_restart_s", {})), result.get("spark_state_s", {})
    rows = [
        [f"{int(keys):,}", f"{median:.1f}", extent(result["spark_restart_s"][keys], 1), f"{reading[keys]:.2f}"]
        for keys, median in restarts.items()
    ]
    lines = {
        "restart": {int(keys): median for keys, median in restarts.items()},
        "of it reading state": {int(keys): seconds for keys, seconds in reading.items()},
    }
    title = "restart on Spark, to the first output"
    return page(
        draw_lines(charts, "recovery", title, lines, "seconds", "keys in state"),
        table(["keys in state", "s to the first output", "restarts", "of it reading state"], rows) if rows else "",
        table([f"the task alone, {result['keys']:,} keys", "us a key", "over plain pickle"], alone),
    )


def in_words(results: Results) -> str:
    result = results["recovery"]
    restarts = {int(keys): median for keys, median in medians(result["spark_restart_s"]).items()}
    few, many = min(restarts), max(restarts)
    reading = result["spark_state_s"][str(many)]
    return paragraph(
        f"A restart takes {restarts[few]:.1f} s with {few:,} keys: that is a new Java, a new query and its first"
        f" micro-batch. With {many:,} keys it takes {restarts[many]:.1f} s, of which reading the state takes"
        f" {reading:.1f} s."
    )


def a_cold_start(results: Results) -> str:
    result = results["recovery"]
    cost, over = sorted(result["us_per_key"].values()), sorted(result["ratios"].values())
    return paragraph(
        f"A cold start of a task takes {cost[0]:.2f} to {cost[-1]:.2f} us for each key with two values and a timer."
        f" This is {times(over[0])} to {times(over[-1])} times as long as `pickle.loads` of the same bytes"
        " (`make bench-recovery`)."
    )


BLOCKS = {
    "recovery": shown(present, "recovery"),
    "recovery in words": Block(in_words, ("recovery",)),
    "a cold start in words": Block(a_cold_start, ("recovery",)),
}
