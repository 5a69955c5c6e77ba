# SPDX-License-Identifier: Apache-2.0
"""What a start costs, and an epoch on an object store, compared with Spark's own ``transformWithStateInPandas``.

A count per key with two partitions, whose rows a ``foreachBatch`` function collects. Each side has a Spark of its own,
in a session in which only the parallelism is set, and the sides take turns.

- A start: each round starts a query on a new checkpoint on the local disk, with rows waiting, and ends with the first
  rows at the sink. ``pillarbox.start`` is called on pillarbox's side, and the writer's own ``start`` on the other one.
  The first rounds do not count, as Java compiles meanwhile.
- An epoch: each side runs one query with its checkpoint in an object store on this machine, which counts requests. What
  counts is the median from the third epoch on.

The object store and the jars for it are installed where they are missing (170 MB). Where they cannot be had, requests
are left out.

Run it with ``make bench-start`` or ``python benchmarks/bench_start.py``. The last line of the output is one JSON
object; ``ratio`` is the time of a start over the time of a start of ``transformWithStateInPandas``, and
``requests_ratio`` the requests of an epoch over the requests of its epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.environments import NotInstalled
from benchmarks.s3_gateway import BUCKET, Gateway, requests_in, s3_settings
from benchmarks.support import (
    AS_SPARK_COMES,
    Side,
    answer,
    find_pillarbox,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
)

find_pillarbox()

import itertools

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor, local_session

SIDES = {"pillarbox": "pillarbox", "spark": "transformWithStateInPandas"}
KEYS = 10
_STORE = "spark__sql__streaming__stateStore__"


class Count(KeyedProcessFunction):
    """Each row gives its key's count."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield row.k, count


class SparkCount(StatefulProcessor):
    """The same in Spark's own API."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterable[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count = (self.count.get() or (0,))[0]
        before = count
        for frame in rows:
            count += len(frame)
        self.count.update((count,))
        yield pd.DataFrame({"k": key[0], "n": range(before + 1, count + 1)})

    def close(self) -> None:
        pass


def counts(side: str, source: DataFrame) -> DataFrame:
    if side == "pillarbox":
        env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(2)
        stream = env.from_dataframe(source).key_by("k").process(Count()).uid("count")
        return stream.to_dataframe("k LONG, n LONG")
    return source.groupBy("k").transformWithStateInPandas(SparkCount(), "k LONG, n LONG", "append", "none")


def start(side: str, writer: Any) -> Any:
    return pillarbox.start(writer) if side == "pillarbox" else writer.start()


# -- one side, in its own process --


def time_of_start(side: str, spark: SparkSession, checkpoint: Path) -> float:
    """Start a query on a new checkpoint; return the seconds to its first rows."""
    came = threading.Event()
    found: list[tuple[int, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend((row.k, row.n) for row in batch.collect())
        came.set()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 2).load()
    writer = counts(side, source.selectExpr(f"value % {KEYS} AS k")).writeStream.foreachBatch(take)
    began = time.perf_counter()
    query = start(side, writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 hour"))
    while not came.wait(0.2):
        if query.exception() is not None:
            sys.exit(str(query.exception()))
    seconds = time.perf_counter() - began
    query.stop()
    if sorted(found) != [(key, n) for key in range(KEYS) for n in range(1, 100 // KEYS + 1)]:
        sys.exit(f"WRONG RESULTS: {SIDES[side]} gave {sorted(found)[:20]}")
    return seconds


def requests_of_epochs(side: str, spark: SparkSession, log: Path, epochs: int) -> list[int]:
    """Run a query on the object store; return the requests of each epoch."""
    seen: list[int] = []
    enough = threading.Event()

    def take(batch: DataFrame, _: int) -> None:
        batch.collect()
        seen.append(requests_in(log))
        if len(seen) > epochs:
            enough.set()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 2).load()
    writer = counts(side, source.selectExpr(f"value % {KEYS} AS k")).writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", f"s3a://{BUCKET}/{side}").trigger(processingTime="0 seconds")
    query = start(side, writer)
    while not enough.wait(0.2):
        if query.exception() is not None:
            sys.exit(str(query.exception()))
    query.stop()
    return [after - before for before, after in itertools.pairwise(seen)]


def serve(side: str, directory: Path, settings: dict[str, str]) -> None:
    spark = local_session(
        2,
        spark__local__dir=str(directory / "local"),
        spark__log__level="ERROR",
        spark__sql__shuffle__partitions="2",
        # Of each side: what pillarbox sets for its own queries.
        **{f"{_STORE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"},
        **{f"{_STORE}rocksdb__changelogCheckpointing__enabled": "true"},
        **({} if side == "pillarbox" else AS_SPARK_COMES),
        **settings,
    )
    for number, question in enumerate(questions()):
        if question["what"] == "start":
            answer(seconds=time_of_start(side, spark, directory / f"checkpoint {number}"))
        else:
            answer(requests=requests_of_epochs(side, spark, Path(question["log"]), question["epochs"]))
    spark.stop()


# -- both sides --


def requests_of(directory: Path, epochs: int) -> dict[str, list[int]] | None:
    """Return each side's requests of each epoch; None: there is no object store to be had."""
    try:
        gateway = Gateway(directory)
    except NotInstalled as error:
        print(f"requests are not counted: {error}")
        return None
    found = {}
    try:
        # One after the other: the store does not tell whose requests they are.
        for side in SIDES:
            process = Side("--side", side, "--directory", str(directory / f"{side} s3"), "--store", gateway.url)
            found[side] = process.ask(what="requests", log=str(gateway.log), epochs=epochs)["requests"][2:]
            process.close()
    finally:
        gateway.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9, help="starts of each side that count")
    parser.add_argument("--warm-up", type=int, default=4, help="starts of each side before these")
    parser.add_argument("--epochs", type=int, default=25, help="epochs on the object store; 0 for none")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        settings = s3_settings(arguments.store) if arguments.store else {}
        arguments.directory.mkdir(parents=True, exist_ok=True)
        serve(arguments.side, arguments.directory, settings)
        return
    with tempfile.TemporaryDirectory(prefix="bench-start-") as directory:
        compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    processes = {side: Side("--side", side, "--directory", str(directory / side)) for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for index in range(arguments.warm_up + arguments.rounds):
        for side in list(SIDES) if index % 2 else reversed(list(SIDES)):
            seconds[side].append(processes[side].ask(what="start")["seconds"])
    for process in processes.values():
        process.close()
    counted = {side: each[arguments.warm_up :] for side, each in seconds.items()}
    print_table(
        ["start to first rows, ms", "median", "lowest", "highest", "the first one"],
        [
            [SIDES[side], *spread([1000 * each for each in counted[side]]), f"{1000 * seconds[side][0]:,.0f}"]
            for side in SIDES
        ],
    )
    ratio, first = (
        statistics.median(of["pillarbox"]) / statistics.median(of["spark"])
        for of in (counted, {side: each[:1] for side, each in seconds.items()})
    )
    requests = requests_of(directory, arguments.epochs) if arguments.epochs else None
    requests_ratio = None
    if requests is not None:
        print_table(
            ["requests of an epoch", "median", "lowest", "highest"],
            [[SIDES[side], *spread([float(each) for each in requests[side]])] for side in SIDES],
        )
        requests_ratio = statistics.median(requests["pillarbox"]) / statistics.median(requests["spark"])
    finish(
        "start",
        ratio,
        requests_ratio=None if requests_ratio is None else round(requests_ratio, 3),
        first_ratio=round(first, 3),
        start_ms={side: round(1000 * statistics.median(each)) for side, each in counted.items()},
        first_ms={side: round(1000 * each[0]) for side, each in seconds.items()},
        requests=None if requests is None else {side: statistics.median(each) for side, each in requests.items()},
        spark=spark_version(),
    )


if __name__ == "__main__":
    main()
