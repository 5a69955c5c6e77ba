# SPDX-License-Identifier: Apache-2.0
"""The cost of a start, and of an epoch on an object store, compared with ``transformWithStateInPandas``.

The program counts keys in two partitions, and a ``foreachBatch`` function collects its rows. Each side has its own
Spark, in a session in which only the parallelism is set. The sides take turns.

- A start: each round starts a query on a new checkpoint on the local disk, with rows waiting, and ends with the first
  rows at the sink. pillarbox's side calls ``pillarbox.start``, the other side the writer's own ``start``. The first
  rounds do not count, because Java is still compiling.
- An epoch: each side runs one query, with its checkpoint in an object store on this machine, which counts requests. The
  result is the median from the third epoch on.

A missing object store and its jars are installed (170 MB). If that fails, requests are left out.

In the last line, ``ratio`` is the time of a start divided by the time of a start of ``transformWithStateInPandas``, and
``requests_ratio`` the number of requests in an epoch divided by its number.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import pillarbox
from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import STATE_STORE, SparkSide
from benchmarks.harness.turns import medians, rounded, table, turns
from benchmarks.peers.counts import Count, PandasCount, count
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.object_store import BUCKET, Gateway, requests_in, s3_settings

SIDES = {"pillarbox": "pillarbox", "spark": "transformWithStateInPandas"}
KEYS = 10
OUTPUT = "key LONG, n LONG"
SMALL = {"rounds": 3, "warm_up": 1, "epochs": 0}
_STORE = "spark__sql__streaming__stateStore__"


class Starts(SparkSide):
    """A side that starts queries."""

    def __init__(self, side: str, directory: str, settings: Mapping[str, str]) -> None:
        self._ours = side == "pillarbox"
        self._number = 0
        defaults = {
            "spark__log__level": "ERROR",
            "spark__sql__shuffle__partitions": "2",
            # For both sides: pillarbox's settings for its queries.
            _STORE + "providerClass": STATE_STORE,
            _STORE + "rocksdb__changelogCheckpointing__enabled": "true",
        }
        super().__init__(directory, {**defaults, **settings}, ours=self._ours)

    def _run_until(self, take: Callable[[DataFrame], bool], checkpoint: str, trigger: str) -> None:
        """Start a query, and stop it when ``take`` returns True for a micro-batch."""
        done = threading.Event()

        def collect(batch: DataFrame, _: int) -> None:
            if take(batch):
                done.set()

        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
        keyed = source.option("numPartitions", 2).load().selectExpr(f"value % {KEYS} AS key")
        if self._ours:
            counts = count(keyed, OUTPUT, Count(), uid="count")
        else:
            counts = keyed.groupBy("key").transformWithStateInPandas(PandasCount(), OUTPUT, "append", "none")
        writer = counts.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
        writer = writer.trigger(processingTime=trigger)
        query = pillarbox.start(writer) if self._ours else writer.start()
        # Wait for the end of the first epoch, too, because the doctor needs one.
        while not done.wait(0.2) or query.lastProgress is None:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            time.sleep(0.05)
        query.stop()

    def start(self) -> dict[str, Any]:
        """Start a query on a new checkpoint. Returns the seconds until its first rows."""
        came: list[float] = []
        results: list[tuple[int, int]] = []

        def take(batch: DataFrame) -> bool:
            results.extend((row.key, row.n) for row in batch.collect())
            came.append(time.perf_counter())
            return True

        self._number += 1
        began = time.perf_counter()
        self._run_until(take, str(self.directory / f"checkpoint {self._number}"), "1 hour")
        wrong = sorted(results) != [(key, n) for key in range(KEYS) for n in range(1, 100 // KEYS + 1)]
        return {"seconds": came[0] - began, "wrong": f"{sorted(results)[:20]}" if wrong else ""}

    def requests(self, log: str, checkpoint: str, epochs: int) -> dict[str, Any]:
        """Run a query on the object store. Returns the number of requests of each epoch."""
        seen: list[int] = []

        def take(batch: DataFrame) -> bool:
            batch.collect()
            seen.append(requests_in(Path(log)))
            return len(seen) > epochs

        self._run_until(take, checkpoint, "0 seconds")
        return {"requests": [after - before for before, after in itertools.pairwise(seen)]}


def requests_of(directory: Path, epochs: int) -> dict[str, list[int]] | None:
    """Return the number of requests of each epoch, by side, or None if no object store can be installed."""
    try:
        gateway = Gateway(directory)
    except NotInstalled as error:
        print(f"requests are not counted: {error}")
        return None
    requests = {}
    try:
        # One after another, because the store does not know which side sends a request.
        for side in SIDES:
            process = Side(Starts, side=side, directory=directory / f"{side} s3", settings=s3_settings(gateway.url))
            answer = process.ask("requests", log=gateway.log, checkpoint=f"s3a://{BUCKET}/{side}", epochs=epochs)
            requests[side] = answer["requests"][2:]
            process.close()
    finally:
        gateway.close()
    return requests


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9, help="starts of each side that count")
    parser.add_argument("--warm-up", type=int, default=4, help="starts of each side before these")
    parser.add_argument("--epochs", type=int, default=25, help="epochs on the object store; 0 for none")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    sides = {side: Side(Starts, side=side, directory=directory / side, settings={}) for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    wrong: list[str] = []
    for index, side in turns(sides, arguments.rounds, arguments.warm_up):
        answer = sides[side].ask("start")
        seconds[side].append(answer["seconds"])
        if answer["wrong"]:
            wrong.append(f"{SIDES[side]}, round {index}: {answer['wrong']}")
    for process in sides.values():
        process.close()
    counted = medians({side: times[arguments.warm_up :] for side, times in seconds.items()})
    requests = requests_of(directory, arguments.epochs) if arguments.epochs else None
    of_each = medians(requests) if requests else None
    figures = {
        "requests_ratio": round(of_each["pillarbox"] / of_each["spark"], 3) if of_each else None,
        "first_ratio": round(seconds["pillarbox"][0] / seconds["spark"][0], 3),
        "start_ms": rounded({side: 1000 * median for side, median in counted.items()}),
        "first_ms": rounded({side: 1000 * times[0] for side, times in seconds.items()}),
        "requests": of_each,
    }
    return Outcome("start", counted["pillarbox"] / counted["spark"], figures, wrong)


def present(result: Result, charts: Path | None) -> str:
    requests = result["requests"] or {}
    rows = [
        [SIDES[side], f"{result['start_ms'][side]:,}", f"{result['first_ms'][side]:,}", f"{requests.get(side, '-'):}"]
        for side in SIDES
    ]
    ratios = [result["ratio"], result["first_ratio"], result["requests_ratio"]]
    rows.append(["pillarbox over it", *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return table(["", "ms from start to first rows", "the first in a JVM", "requests of an epoch"], rows)


BLOCKS = {"start": shown(present, "start")}
