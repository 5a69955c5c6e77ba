# SPDX-License-Identifier: Apache-2.0
"""The cost of an epoch without data and of an epoch with 1,000 rows, compared with Spark's ``transformWithState``.

The program counts 10,000 keys, and emits a key's count for each row. Both queries are in processing-time mode, in which
Spark runs one micro-batch after another, even without data, as timers and idleness require. No timer is set, which
spares Spark's side a call to Java for each timer.

Each side has its own Spark with two cores, two partitions, the same state store, and a sink that does almost nothing.
pillarbox has 4 subtasks in the partitions (the default) and, on separate sides, 2 and 64. These sides are compared by
processor time; ``--sides`` leaves some out. While one side runs a micro-batch, the other is held in its
``foreachBatch`` function after its work. The time for which it is held is subtracted. Micro-batches without data and
micro-batches with 1,000 rows of different keys take turns, and so do the sides. The result is the median of Spark's
``triggerExecution`` after the warm-up. The processor time that Java and the Python workers use for an epoch is also
shown, because it depends less on other work of the machine.

Spark's side uses Spark's row API. The results are checked: every micro-batch must emit exactly the counts of its keys.

In the last line, ``ratio`` is the time of pillarbox's epoch divided by the time of Spark's epoch, without data or with
data, whichever is larger. ``over_two_subtasks`` is the processor time of an epoch with 4 and with 64 subtasks, divided
by the processor time with 2.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from benchmarks.harness.case import Block, Outcome, Result, Results, shown
from benchmarks.harness.machine import cpu_by_program
from benchmarks.harness.process import Side
from benchmarks.harness.rows import observed, summary, write_halves
from benchmarks.harness.stepped import SparkSide, step_settings, task_reports
from benchmarks.harness.turns import extent, in_turn, medians, rounded, table
from benchmarks.peers.counts import Count, SparkCount, count
from benchmarks.report.words import page, paragraph

SIDES = {
    "pillarbox": "pillarbox",
    "spark": "transformWithState",
    "2 subtasks": "pillarbox, 2 subtasks",
    "64 subtasks": "pillarbox, 64 subtasks",
}
SUBTASKS = {"pillarbox": 4, "2 subtasks": 2, "64 subtasks": 64}
KINDS = {"empty": "without data", "rows": "with data"}
OUTPUT = "key INT, n LONG"
STEPS = ("triggerExecution", "addBatch", "latestOffset", "queryPlanning", "walCommit", "commitOffsets")
SMALL = {"epochs": 5, "warm_up": 2, "sides": ["pillarbox", "spark"]}


def result(side: str, source: DataFrame) -> DataFrame:
    if side in SUBTASKS:
        return count(source, OUTPUT, Count(), subtasks=SUBTASKS[side], processing_time=True)
    return source.groupBy("key").transformWithState(SparkCount(), OUTPUT, "append", "ProcessingTime")


# -- one side, in its own process --


class HeldQuery:
    """A query that runs micro-batches on request, although its trigger is the default trigger."""

    def __init__(self, result: DataFrame, checkpoint: Path) -> None:
        self._go = threading.Semaphore(0)
        self._held = threading.Semaphore(0)
        self._ends = False
        self._seconds_held: dict[int, float] = {}
        # The first micro-batch waits for data; each further one follows the previous one.
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
        """Run the next micro-batch to its end, and hold it there."""
        if self._started:
            self._go.release()
        self._started = True
        self._wait()

    def finish(self) -> list[dict[str, Any]]:
        """Stop the query. Returns reports of all micro-batches except the last, which has not ended."""
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
                # If Spark skips the query because there is no work, nothing is observed.
                "results": [value or 0 for value in progress.observedMetrics.get("results", (0, 0, 0))],
                "states": sorted({str(task.state_sync) for task in task_reports(progress)}),
            }
            for progress in progresses
            if progress.batchId <= last and progress.batchId in self._seconds_held
        ]


class Epochs(SparkSide):
    """A side with a held query."""

    def __init__(self, side: str, directory: str, memory: str) -> None:
        settings = step_settings(memory)
        settings["spark__sql__streaming__noDataMicroBatches__enabled"] = "true"
        settings["spark__sql__streaming__numRecentProgressUpdates"] = "10000"
        super().__init__(directory, settings, ours=side in SUBTASKS)
        self._arrived = self.directory / "in"
        (self._arrived / "nothing").mkdir(parents=True)
        source = self.spark.readStream.schema("key INT").parquet(str(self._arrived / "*"))
        self._query = HeldQuery(observed(result(side, source)), self.directory / "checkpoint")

    def step(self, batch: str | None = None) -> None:
        """Run a micro-batch, with the rows in a directory or without rows."""
        if batch is not None:
            shutil.move(batch, self._arrived / Path(batch).name)
        self._query.step()

    def finish(self) -> dict[str, Any]:
        """Stop the query. Returns the reports of its micro-batches."""
        return {"batches": self._query.finish()}


# -- all sides --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a micro-batch")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=25, help="micro-batches of each kind that count")
    parser.add_argument("--warm-up", type=int, default=8, help="micro-batches of each kind before these")
    parser.add_argument("--memory", default="1g", help="of each Spark")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="which; all by default")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    random, counts = np.random.default_rng(1), np.zeros(arguments.keys, np.int64)
    places = {side: directory / side for side in arguments.sides}
    sides = {side: Side(Epochs, side=side, directory=path, memory=arguments.memory) for side, path in places.items()}
    cpu: dict[str, dict[str, list[dict[str, float]]]] = {side: {kind: [] for kind in KINDS} for side in sides}
    expected: list[list[int]] = []
    for index in range(-arguments.warm_up, arguments.epochs):
        # The first micro-batch with data has all keys.
        keys, rows = arguments.keys, arguments.rows
        some = random.choice(keys, rows, replace=False) if expected else np.arange(keys)
        counts[some] += 1
        expected += [summary([some, counts[some]]), [0, 0, 0]]
        for kind in ("rows", "empty"):
            for side in in_turn(sides, index):
                path = places[side] / "staging" / f"{len(expected):03}"
                batch = write_halves(path, key=some.astype(np.int32)) if kind == "rows" else None
                before = cpu_by_program(sides[side].pid)
                sides[side].ask("step", batch=batch)
                if index >= 0:
                    after = cpu_by_program(sides[side].pid)
                    cpu[side][kind].append({program: after[program] - before[program] for program in before})
    wrong: list[str] = []
    steps = {side: steps_of(side, process, expected, 2 * arguments.warm_up, wrong) for side, process in sides.items()}
    print_steps(steps, cpu)
    times = {side: {kind: [batch[STEPS[0]] for batch in steps[side][kind]] for kind in KINDS} for side in sides}
    middle = {side: medians(kinds) for side, kinds in times.items()}
    used = {
        side: {kind: statistics.mean(sum(cost.values()) for cost in kinds[kind]) for kind in KINDS}
        for side, kinds in cpu.items()
    }
    both = {"pillarbox", "spark"} <= sides.keys()
    ratios = {kind: middle["pillarbox"][kind] / middle["spark"][kind] if both else 0.0 for kind in KINDS}
    lowest = {kind: min(times["pillarbox"][kind]) / min(times["spark"][kind]) if both else 0.0 for kind in KINDS}
    figures = {
        "over_two_subtasks": {
            str(SUBTASKS[side]): {kind: round(used[side][kind] / used["2 subtasks"][kind], 3) for kind in KINDS}
            for side in sides
            if "2 subtasks" in sides and SUBTASKS.get(side, 2) != 2
        },
        "ratios": rounded(ratios, 3),
        "ratios_of_lowest": rounded(lowest, 3),
        "cpu_ms": rounded(used),
        "epoch_ms": rounded(middle),
        "rounds": rounded(times),
        "rows": arguments.rows,
        "keys": arguments.keys,
    }
    return Outcome("epoch", max(ratios.values()), figures, wrong)


def steps_of(
    side: str, process: Side, expected: list[list[int]], first: int, wrong: list[str]
) -> dict[str, list[dict[str, float]]]:
    """Return the durations of a side's micro-batches and their steps, without the time for which they were held."""
    batches = {batch["number"]: batch for batch in process.ask("finish")["batches"]}
    process.close()
    samples: dict[str, list[dict[str, float]]] = {"rows": [], "empty": []}
    for number, results in enumerate(expected):
        batch = batches.get(number)
        if batch is None or batch["results"] != results or batch["rows"] != results[0]:
            wrong.append(f"{SIDES[side]}, micro-batch {number}: {batch and batch['results']}, not {results}")
        elif number >= first:
            held = dict.fromkeys(("triggerExecution", "addBatch"), batch["held_ms"])
            steps = {name: ms - held.get(name, 0) for name, ms in batch["steps"].items()}
            samples["empty" if number % 2 else "rows"].append(steps)
    if not (samples["rows"] and samples["empty"]):
        raise SystemExit("\n".join(wrong))
    return samples


def print_steps(steps: Any, cpu: Any) -> None:
    """Print Spark's steps in an epoch, and the programs' processor time."""
    rows = [
        [
            f"{what}, {SIDES[side]}",
            *(f"{statistics.median(batch[step] for batch in steps[side][kind]):,.0f}" for step in STEPS),
            *(f"{statistics.mean(cost[program] for cost in cpu[side][kind]):,.0f}" for program in ("java", "python")),
        ]
        for kind, what in KINDS.items()
        for side in steps
    ]
    print(table(["an epoch, ms", *STEPS, "processor: Java", "Python"], rows))


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    spark = result["epoch_ms"].get("spark")
    rows = [
        [
            f"{what}, {SIDES[side]}",
            f"{medians[kind]:,}",
            extent(result["rounds"][side][kind]),
            f"{result['cpu_ms'][side][kind]:,}",
            f"{medians[kind] / spark[kind]:.2f}" if spark else "",
        ]
        for kind, what in (("empty", "without data"), ("rows", f"with {result['rows']:,} rows"))
        for side, medians in result["epoch_ms"].items()
    ]
    head = ["milliseconds an epoch", "median", "rounds", "processor time", f"median over {SIDES['spark']}"]
    usual = f"pillarbox has {SUBTASKS['pillarbox']} subtasks on two partitions, if the table does not say otherwise."
    return page(table(head, rows), usual)


def by_subtasks(results: Results) -> str:
    result = results["epoch"]
    rows = [
        [number, *(f"{result[what][side][kind]} ms" for kind in ("empty", "rows") for what in ("epoch_ms", "cpu_ms"))]
        for side, number in sorted(SUBTASKS.items(), key=lambda item: item[1])
    ]
    head = ["subtasks in 2 partitions", "epoch without data", "processor time"]
    return table([*head, f"epoch with {result['rows']:,} rows", "processor time"], rows)


def in_words(results: Results) -> str:
    result = results["epoch"]
    ratios, more, usual = result["ratios"], result["over_two_subtasks"], SUBTASKS["pillarbox"]
    two = result["epoch_ms"]["2 subtasks"]["rows"] / result["epoch_ms"]["spark"]["rows"]
    rows = f"with {result['rows']:,} rows"
    return "\n\n".join(
        [
            paragraph(
                f"On two cores, the default is {usual} subtasks on two partitions. An epoch without data then takes"
                f" {ratios['empty']:.2f} times as long as with `transformWithState`, and an epoch {rows} takes"
                f" {ratios['rows']:.2f} times as long. With 2 subtasks, an epoch {rows} takes {two:.2f} times as long."
            ),
            paragraph(
                "Additional subtasks cost almost nothing in an epoch without data, because Spark then calls no subtask."
                f" In an epoch {rows}, {usual} subtasks on two partitions take {more[str(usual)]['rows']:.2f} times the"
                f" processor time of 2 subtasks, and 64 subtasks take {more['64']['rows']:.2f} times the time. Java and"
                " Python are both included."
            ),
        ]
    )


BLOCKS = {
    "epoch": shown(present, "epoch"),
    "subtasks": Block(by_subtasks, ("epoch",), commands=True),
    "epochs in words": Block(in_words, ("epoch",)),
}
