# SPDX-License-Identifier: Apache-2.0
"""What an epoch costs by itself: one without data and one with 1,000 rows, beside Spark's own ``transformWithState``.

A count per key: each row gives its key's count, of 10,000 keys. Both queries are in processing-time mode, in which
Spark runs one micro-batch after the other, whether or not there are data: what timers and idleness need. No timer is
set, which spares Spark's side a call to the Java side for each.

Each side has a Spark of its own, with two cores and two partitions, the same state store and as good as no sink.
pillarbox has 4 subtasks in them, as it has by default; and, on sides of their own, 2 and 64 (``--sides`` leaves some
out), which are compared by processor time.
While one runs a micro-batch the other is held, in its ``foreachBatch`` function once the work is done; that time is
taken off. Micro-batches without data and with 1,000 rows of different keys take turns, and so do the sides; what
counts is the median of Spark's ``triggerExecution`` after the warm-up. Beside it stands the processor time that Java
and the Python workers take for an epoch, which depends less on other work of the machine.

Spark's side is its row flavour. The results are checked: every micro-batch must give exactly the counts of its keys.

Run it with ``make bench-epoch`` or ``python benchmarks/bench_epoch.py``. The last line of the output is one JSON
object; ``ratio`` is the time of pillarbox's epoch over the time of Spark's epoch, without data or with, the larger;
``over_two_subtasks`` the processor time of an epoch with 4 and 64 subtasks over its processor time with 2.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    AS_SPARK_COMES,
    Side,
    answer,
    cpu_by_program,
    find_pillarbox,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, local_session

SIDES = {
    "pillarbox": "pillarbox",
    "spark": "transformWithState",
    "2 subtasks": "pillarbox, 2 subtasks",
    "64 subtasks": "pillarbox, 64 subtasks",
}
SUBTASKS = {"pillarbox": 4, "2 subtasks": 2, "64 subtasks": 64}
KINDS = {"empty": "without data", "rows": "with data"}
OUTPUT = "key INT, n LONG"
CHECKSUM = (1_000_003, 7_919, 2_147_483_647)
STEPS = ("triggerExecution", "addBatch", "latestOffset", "queryPlanning", "walCommit", "commitOffsets")


class Count(KeyedProcessFunction):
    """Each row gives its key's count."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row.key, n


class SparkCount(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.n = handle.getValueState("n", "n LONG")

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        for _ in rows:
            n += 1
            yield Row(key=key[0], n=n)
        self.n.update((n,))

    def close(self):
        pass


def result(side: str, source: DataFrame) -> DataFrame:
    if side in SUBTASKS:
        env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
        env.set_parallelism(2).set_max_parallelism(SUBTASKS[side])
        stream = env.from_dataframe(source).key_by("key").process(Count(), processing_time=True)
        return stream.to_dataframe(OUTPUT)
    return source.groupBy("key").transformWithState(SparkCount(), OUTPUT, "append", "ProcessingTime")


# -- one side, in its own process --


class HeldQuery:
    """A query that runs a micro-batch when it is told to, although its trigger is the default one."""

    def __init__(self, result: DataFrame, checkpoint: Path) -> None:
        self._go = threading.Semaphore(0)
        self._held = threading.Semaphore(0)
        self._ends = False
        self._seconds_held: dict[int, float] = {}
        # The first micro-batch comes when there are data, each other one after the one before it.
        self._started = False
        self._query = result.writeStream.foreachBatch(self._run).option("checkpointLocation", str(checkpoint)).start()

    def _run(self, batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        started = time.perf_counter()
        if not self._ends:
            self._held.release()
            self._go.acquire()
        self._seconds_held[number] = time.perf_counter() - started

    def _wait(self) -> None:
        while not self._held.acquire(timeout=1):
            if self._query.exception() is not None or not self._query.isActive:
                raise SystemExit(f"the query ended: {self._query.exception()}")

    def step(self) -> None:
        """Run the next micro-batch up to its end, and hold it there."""
        if self._started:
            self._go.release()
        self._started = True
        self._wait()

    def finish(self) -> list[dict[str, Any]]:
        """Stop the query; tell of all micro-batches but the last, which is not at its end."""
        last = max(self._seconds_held, default=-1) + 1
        self._ends = True
        self._go.release()
        while last not in {progress.batchId for progress in self._query.recentProgress}:
            time.sleep(0.02)
        progresses = list(self._query.recentProgress)
        self._query.stop()
        return [
            {
                "number": progress.batchId,
                "rows": progress.numInputRows,
                "held_ms": self._seconds_held[progress.batchId] * 1000,
                "steps": {name: progress.durationMs.get(name, 0) for name in STEPS},
                # Where Spark finds out that there is nothing to be done, there is nothing observed either.
                "results": [value or 0 for value in progress.observedMetrics.get("results", (0, 0, 0))],
                "states": sorted({str(task.state_sync) for task in task_reports(progress)}),
            }
            for progress in progresses
            if progress.batchId <= last and progress.batchId in self._seconds_held
        ]


def serve(side: str, directory: Path, memory: str) -> None:
    settings = step_settings(directory, memory)
    settings["spark__sql__streaming__noDataMicroBatches__enabled"] = "true"
    settings["spark__sql__streaming__numRecentProgressUpdates"] = "10000"
    if side not in SUBTASKS:
        settings |= AS_SPARK_COMES
    spark = local_session(2, **settings)
    arrived = directory / "in"
    (arrived / "nothing").mkdir(parents=True)
    source = spark.readStream.schema("key INT").parquet(str(arrived / "*"))
    a, b, modulus = CHECKSUM
    weight = (F.col("key").cast("long") * a + F.col("n") * b) % modulus
    observed = result(side, source).observe(
        "results", F.count(F.lit(1)).alias("rows"), F.sum("n").alias("counts"), F.sum(weight).alias("checksum")
    )
    query = HeldQuery(observed, directory / "checkpoint")
    for question in questions():
        if question["what"] == "finish":
            answer(batches=query.finish())
        else:
            if question["batch"] is not None:
                shutil.move(question["batch"], arrived / Path(question["batch"]).name)
            query.step()
            answer()
    spark.stop()


# -- both sides --


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a micro-batch")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=25, help="micro-batches of each kind that count")
    parser.add_argument("--warm-up", type=int, default=8, help="micro-batches of each kind before these")
    parser.add_argument("--memory", default="1g", help="of each Spark")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="which; all by default")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side, arguments.directory, arguments.memory)
        return
    with tempfile.TemporaryDirectory(prefix="bench-epoch-") as directory:
        compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    random = np.random.default_rng(1)
    counts = np.zeros(arguments.keys, np.int64)
    a, b, modulus = CHECKSUM
    expected: list[list[int]] = []
    sides: dict[str, Side] = {}
    for side in arguments.sides:
        (directory / side).mkdir()
        sides[side] = Side("--side", side, "--directory", str(directory / side), "--memory", arguments.memory)
    cpu: dict[str, dict[str, list[dict[str, float]]]] = {side: {kind: [] for kind in KINDS} for side in sides}
    rounds = arguments.warm_up + arguments.epochs
    for index in range(rounds):
        # The first micro-batch with data has all keys.
        some = random.choice(arguments.keys, arguments.rows, replace=False) if index else np.arange(arguments.keys)
        counts[some] += 1
        expected += [
            [len(some), int(counts[some].sum()), int(((some * a + counts[some] * b) % modulus).sum())],
            [0, 0, 0],
        ]
        for kind in ("rows", "empty"):
            # Alternating, and every other round backwards, so that neither gains by its place.
            for side in list(sides) if index % 2 else reversed(list(sides)):
                batch = None
                if kind == "rows":
                    batch = directory / side / "staging" / f"{index:03}"
                    batch.mkdir(parents=True)
                    for part in range(2):
                        table = pa.table({"key": some[part::2].astype(np.int32)})
                        pq.write_table(table, batch / f"{part}.parquet")
                before = cpu_by_program(sides[side].pid)
                sides[side].ask(what="step", batch=None if batch is None else str(batch))
                if index >= arguments.warm_up:
                    after = cpu_by_program(sides[side].pid)
                    cpu[side][kind].append({program: after[program] - before[program] for program in before})

    wrong: list[str] = []
    times: dict[str, dict[str, list[dict[str, float]]]] = {}
    for side, process in sides.items():
        batches = {said["number"]: said for said in process.ask(what="finish")["batches"]}
        process.close()
        times[side] = {"rows": [], "empty": []}
        for index, wanted in enumerate(expected):
            said = batches.get(index)
            if said is None or said["results"] != wanted or said["rows"] != wanted[0]:
                wrong.append(f"{SIDES[side]}, micro-batch {index}: {said and said['results']}, not {wanted}")
            elif index >= 2 * arguments.warm_up:
                steps = dict(said["steps"])
                for name in ("triggerExecution", "addBatch"):
                    steps[name] -= said["held_ms"]
                times[side]["empty" if index % 2 else "rows"].append(steps)

    def values(side: str, kind: str, step: str = "triggerExecution") -> list[float]:
        return [steps[step] for steps in times[side][kind]]

    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    if any(not times[side][kind] for side in sides for kind in KINDS):
        sys.exit(1)
    print_table(
        ["an epoch, ms", "median", "lowest", "highest", *STEPS[1:]],
        [
            [
                f"{KINDS[kind]}, {SIDES[side]}",
                *spread(values(side, kind)),
                *(f"{statistics.median(values(side, kind, step)):,.0f}" for step in STEPS[1:]),
            ]
            for kind in KINDS
            for side in sides
        ],
    )
    used = {
        side: {
            kind: {
                program: statistics.mean(each[program] for each in cpu[side][kind]) for program in ("java", "python")
            }
            for kind in KINDS
        }
        for side in sides
    }
    print_table(
        ["processor time of an epoch, ms", "Java", "Python", "both"],
        [
            [
                f"{KINDS[kind]}, {SIDES[side]}",
                *(f"{value:,.0f}" for value in (*used[side][kind].values(), sum(used[side][kind].values()))),
            ]
            for kind in KINDS
            for side in sides
        ],
    )
    medians = {side: {kind: statistics.median(values(side, kind)) for kind in KINDS} for side in sides}
    over_two: dict[str, dict[str, float]] = {}
    if "2 subtasks" in sides:
        for side in (side for side in sides if SUBTASKS.get(side, 2) != 2):
            over_two[str(SUBTASKS[side])] = {
                kind: round(sum(used[side][kind].values()) / sum(used["2 subtasks"][kind].values()), 3)
                for kind in KINDS
            }
    for count, each in sorted(over_two.items(), key=lambda item: int(item[0])):
        print(
            f"processor time with {count} subtasks over that with 2: {each['empty']:.2f} without data,"
            f" {each['rows']:.2f} with {arguments.rows:,} rows"
        )
    ratios, lowest = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    if {"pillarbox", "spark"} <= sides.keys():
        ratios = {kind: medians["pillarbox"][kind] / medians["spark"][kind] for kind in KINDS}
        lowest = {kind: min(values("pillarbox", kind)) / min(values("spark", kind)) for kind in KINDS}
        print(
            f"pillarbox over {SIDES['spark']}: {ratios['empty']:.2f} without data,"
            f" {ratios['rows']:.2f} with {arguments.rows:,} rows"
        )
    finish(
        "epoch",
        max(ratios.values()),
        over_two_subtasks=over_two,
        results_agree=not wrong,
        ratios={kind: round(value, 3) for kind, value in ratios.items()},
        ratios_of_lowest={kind: round(value, 3) for kind, value in lowest.items()},
        cpu_ms={side: {kind: round(sum(used[side][kind].values())) for kind in KINDS} for side in sides},
        epoch_ms={side: {kind: round(value) for kind, value in kinds.items()} for side, kinds in medians.items()},
        rounds={side: {kind: [round(value) for value in values(side, kind)] for kind in KINDS} for side in sides},
        rows=arguments.rows,
        keys=arguments.keys,
        spark=spark_version(),
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
