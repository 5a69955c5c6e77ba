# SPDX-License-Identifier: Apache-2.0
"""The cost of task slots: the same work, with 8 partitions, on 2, 8 and 16 slots.

A keyed count over 400,000 keys processes 48 micro-batches of 100,000 rows. Each side has its own Spark, and the sides
run one micro-batch each in turn, in alternating order. The measured Python processes are all that Spark and pillarbox
start: workers (which are relays), homes, and the process that starts homes. Their processor time per micro-batch is
measured over the second half of the run. Their memory is the proportional memory (``Pss``) at the end, minus the memory
of the same query with a function without state.

``--works many`` runs 64 partitions with three keyed levels on two slots, with and without homes; ``ratio`` compares
their memory. ``--works broadcast`` has 200,000 broadcast rules, at the default max parallelism and at two. ``--works
cluster --revision REVISION`` compares this checkout with another revision on two executors with four slots each,
1,000,000 keys and an uneven load; ``ratio`` divides the 99th percentiles of the epochs' times, and ``moves`` is how
often a key was on another executor than in the previous epoch.

Requires Linux, because it reads /proc. In the last line, ``ratio`` is the processor time with 8 slots divided by the
processor time with 2, and ``memory_ratio`` the same for memory. ``in_step`` is the share of subtasks' epochs with 8
slots, in the second half, that read only the head of their log.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pillarbox
from benchmarks.harness.case import Block, Outcome, Result, Results
from benchmarks.harness.machine import cpu_seconds_of, descendants, kind_of_python, memory_mb
from benchmarks.harness.process import SOURCE, Side, revision_source
from benchmarks.harness.stepped import SparkSide, SteppedQuery, step_settings
from benchmarks.harness.turns import in_turn, rounded, table, turns
from benchmarks.report.words import paragraph
from pillarbox import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from pillarbox import DataStream

RULES = MapStateDescriptor("rules")
WORKS = {
    "slots": [("work", 2), ("work", 8), ("work", 16), ("empty", 2), ("empty", 8)],
    "many": [("many", 2), ("many without homes", 2)],
    "broadcast": [("broadcast", 2), ("broadcast 2", 2)],
}
KINDS = {"worker": "relay", "home": "home"}
SMALL = {"epochs": 6, "keys": 20_000, "rows": 10_000, "rules": 2_000}


class Count(KeyedProcessFunction):
    """Counts the rows of a key."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        if self.keeps:
            self.n.update((self.n.value() or 0) + 1)
        if row.key < 4:
            yield row.key, os.getpid()


class Pass(KeyedProcessFunction):
    """Emits its rows, and counts them."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        yield row


class Where(KeyedProcessFunction):
    """Counts the rows of a key, and emits the executor (its folder) of some rows."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        if row.key % 20_000 == 0:
            yield row.key, int(os.path.basename(os.getcwd()))


class Rule(KeyedBroadcastProcessFunction):
    """Stores all rules."""

    def process_element(self, row, ctx):
        yield row.key, os.getpid()

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(RULES).put(row.key, "a rule of some length, as rules are")


def pythons() -> dict[int, str]:
    """Return the kinds of Python processes that descend from this process, by pid."""
    kinds = ((pid, kind_of_python(pid)) for pid in descendants(os.getpid()))
    return {pid: kind for pid, kind in kinds if kind is not None}


class Cluster(SparkSide):
    """A side with two executors."""

    def __init__(self, directory: str) -> None:
        settings = {
            "spark__master": "local-cluster[2,4,2048]",
            "spark__sql__shuffle__partitions": "8",
            "spark__sql__streaming__numRecentProgressUpdates": "1000",
        }
        super().__init__(directory, settings, slots=8)

    def run(self, epochs: int) -> dict[str, Any]:
        """Run a query. Returns its epochs' durations (ms), and how often keys moved."""
        folder, spark = self.directory, self.spark
        (folder / "in").mkdir(parents=True)
        rng, keys, loads = np.random.default_rng(1), 1_000_000, 8
        for epoch in range(loads + epochs):
            if epoch < loads:  # with all keys
                keys_of_epoch = np.arange(keys)[epoch::loads]
            else:
                keys_of_epoch = np.minimum(rng.zipf(1.3, 30_000) * 7919 % keys, keys - 1)
                keys_of_epoch[:7_500] = rng.integers(0, keys, 7_500)
                keys_of_epoch[:50] = np.arange(50) * 20_000
            pq.write_table(pa.table({"key": keys_of_epoch.astype("int64")}), folder / "in" / f"{epoch:04}.parquet")
        rows = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(8).set_max_parallelism(16)
        frame = env.from_dataframe(rows).key_by("key").process(Where()).uid("count").to_dataframe("key LONG, at LONG")
        places: dict[int, int] = {}
        moves = [0]

        def take(batch: Any, number: int) -> None:
            for key, at in set(map(tuple, batch.collect())):
                moves[0] += places.setdefault(key, at) != at
                places[key] = at

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
        query = pillarbox.start(writer.trigger(availableNow=True))
        query.awaitTermination()
        times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
        return {"times": times[loads + 2 :], "moves": moves[0]}


class Slots(SparkSide):
    """A side with some task slots, and a query that receives micro-batches on request."""

    def __init__(self, directory: str, work: str, slots: int, partitions: int, rules: int) -> None:
        parts = 64 if work.startswith("many") else 2 if work.startswith("broadcast") else partitions
        settings = {**step_settings("3g"), "spark__sql__shuffle__partitions": str(parts)}
        settings["spark__sql__streaming__numRecentProgressUpdates"] = "10000"
        if work == "many without homes":
            settings["spark__pillarbox__homes"] = "off"
        super().__init__(directory, settings, slots=slots)
        self._query = SteppedQuery(self.spark, self.directory, "key LONG")
        self._progresses: list[StreamingQueryProgress] = []
        self._query.start(self._result(work, parts, rules).to_dataframe("key LONG, pid LONG"))

    def _result(self, work: str, parts: int, rules: int) -> DataStream[Any]:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(parts)
        stream = env.from_dataframe(self._query.source)
        if work.startswith("broadcast"):
            if work == "broadcast 2":
                env.set_max_parallelism(2)
            folder = self.directory / "rules"
            folder.mkdir()
            pq.write_table(pa.table({"key": np.arange(rules).astype("int64")}), folder / "0.parquet")
            rule_stream = env.from_dataframe(self.spark.readStream.schema("key LONG").parquet(str(folder)))
            return stream.key_by("key").connect(rule_stream.broadcast(RULES)).process(Rule()).uid("rules")
        if work.startswith("many"):
            env.set_max_parallelism(64)
            for level in ("one", "two"):
                stream = stream.key_by("key").process(Pass()).uid(level)
        else:
            env.set_max_parallelism(parts)
        return stream.key_by("key").process(Count(keeps=work != "empty")).uid("count")

    def step(self, batch: str) -> dict[str, Any]:
        """Run a micro-batch. Returns the processor time of the Python processes since their start, in seconds."""
        self._progresses.append(self._query.step(batch))
        return {"cpu": cpu_seconds_of(pythons())}

    def finish(self) -> dict[str, Any]:
        """Measure the Python processes and the checkpoint, and stop the query."""
        present = pythons()
        private: dict[str, list[float]] = {"worker": [], "home": []}
        for pid, kind in present.items():
            if kind in private:
                private[kind].append(memory_mb(pid, "Private_"))
        tasks = [
            task
            for progress in self._progresses[len(self._progresses) // 2 :]
            for task in pillarbox.metrics(progress)
            if task.level
        ]
        log = (self.directory / "checkpoint" / "state").rglob("*")
        figures = {
            "pss_mb": sum(memory_mb(pid, "Pss:") for pid in present),
            "in_step": statistics.fmean(task.state_sync == "in step" for task in tasks) if tasks else 0.0,
            "processes": len(present),
            **{f"{name}_mb": statistics.median(private[kind] or [0.0]) for kind, name in KINDS.items()},
            "checkpoint_mb": sum(path.stat().st_size for path in log if path.is_file()) / 1e6,
        }
        self._query.stop()
        return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--works", choices=["slots", "many", "broadcast", "cluster"], default="slots")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=48)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rules", type=int, default=200_000)
    parser.add_argument("--revision", help="what to compare with, for the work cluster")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    if arguments.works == "cluster":
        return compare_on_cluster(arguments, directory)
    figures = measure(arguments, directory)
    queries = {f"{work}, {slots} slots": rounded(values, 2) for (work, slots), values in figures.items()}
    if arguments.works == "many":
        ratio = figures["many", 2]["pss_mb"] / figures["many without homes", 2]["pss_mb"]
        return Outcome("slots-many", ratio, {"queries": queries})
    if arguments.works == "broadcast":
        by_default, by_two = figures["broadcast", 2], figures["broadcast 2", 2]
        checkpoint_ratio = round(by_default["checkpoint_mb"] / by_two["checkpoint_mb"], 3)
        summary = {"checkpoint_ratio": checkpoint_ratio, "queries": queries}
        return Outcome("slots-broadcast", by_default["pss_mb"] / by_two["pss_mb"], summary)
    two, eight = figures["work", 2], figures["work", 8]
    state_mb = {slots: figures["work", slots]["pss_mb"] - figures["empty", slots]["pss_mb"] for slots in (2, 8)}
    summary = {
        "memory_ratio": round(state_mb[8] / state_mb[2], 3),
        "in_step": round(eight["in_step"], 4),
        **{name: round(figures["empty", 8][name], 1) for name in ("relay_mb", "home_mb")},
        "queries": queries,
    }
    return Outcome("slots", eight["cpu_ms"] / two["cpu_ms"], summary)


def measure(arguments: argparse.Namespace, directory: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Run a work's queries side by side, epoch by epoch in turn, and return their figures."""
    places = {side: directory / f"{side[0]} {side[1]}" for side in WORKS[arguments.works]}
    sides = {
        (work, slots): Side(
            Slots,
            directory=path,
            work=work,
            slots=slots,
            partitions=arguments.partitions,
            rules=arguments.rules,
        )
        for (work, slots), path in places.items()
    }
    rng = np.random.default_rng(1)
    cpu: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
    for epoch in range(arguments.epochs):
        rows = pa.table({"key": rng.integers(0, arguments.keys, arguments.rows)})
        for side in in_turn(sides, epoch):
            batch = places[side] / "staging" / f"{epoch:04}"
            batch.mkdir(parents=True)
            pq.write_table(rows, batch / "0.parquet")
            cpu[side].append(sides[side].ask("step", batch=batch)["cpu"])
    half = (arguments.epochs - 1) // 2
    figures = {}
    for side, seconds in cpu.items():
        # Since the end of an epoch in the middle, so work between epochs counts too.
        cpu_ms = 1000 * (seconds[-1] - seconds[half]) / (arguments.epochs - 1 - half)
        figures[side] = {"cpu_ms": cpu_ms, **sides[side].ask("finish")}
    for process in sides.values():
        process.close()
    return figures


def compare_on_cluster(arguments: argparse.Namespace, directory: Path) -> Outcome:
    """Compare this checkout with a revision on two executors. Each runs twice, in turn."""
    if arguments.revision is None:
        raise SystemExit("--works cluster compares with a --revision")
    times: dict[str, list[int]] = {"this": [], "revision": []}
    moves = dict.fromkeys(times, 0)
    with revision_source(arguments.revision) as revision:
        places = {"this": SOURCE, "revision": revision}
        for index, name in turns(places, 1):
            side = Side(Cluster, directory=directory / f"{name} {index}", source=places[name])
            answer = side.ask("run", epochs=arguments.epochs)
            side.close()
            times[name] += answer["times"]
            moves[name] += answer["moves"]
    p50, p99 = ({name: float(np.percentile(all_, at)) for name, all_ in times.items()} for at in (50, 99))
    figures = {
        "p50_ratio": round(p50["this"] / p50["revision"], 3),
        "moves": moves["this"],
        "queries": {
            name: {"p50_ms": round(p50[name]), "p99_ms": round(p99[name]), "moves": moves[name]} for name in p50
        },
    }
    return Outcome("slots-cluster", p99["this"] / p99["revision"], figures)


def present(result: Result, charts: Path | None) -> str:
    names = list(next(iter(result["queries"].values())))
    return table(
        ["", *names],
        [[query, *(f"{figures[name]:,}" for name in names)] for query, figures in result["queries"].items()],
    )


def in_words(results: Results) -> str:
    result = results["slots"]
    in_step = "All subtasks" if result["in_step"] == 1 else f"In {result['in_step']:.1%} of the epochs, subtasks"
    return paragraph(
        "`make bench-slots` runs a keyed count in 8 partitions with 2, 8 and 16 task slots. With 8 slots, the count"
        f" takes {result['ratio']:.2f} times the processor time and {result['memory_ratio']:.2f} times the memory for"
        " state that it takes with 2 slots. The additional processor time is spent in the homes, because eight of them"
        f" then share the caches of {result['cores']} cores. {in_step} found the state of Spark's last committed epoch"
        f" in their home. A worker takes {result['relay_mb']:.0f} MB of unshared memory. A home takes"
        f" {result['home_mb']:.0f} MB, and about 4 MB of this are Arrow buffers."
    )


BLOCKS = {"slots in words": Block(in_words, ("slots",))}
