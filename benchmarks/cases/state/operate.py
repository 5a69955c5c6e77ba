# SPDX-License-Identifier: Apache-2.0
"""Operations on a query with much state: reading, rescaling, saving, and starting from a savepoint.

Each key has a count and the time of its last row, both of declared types: two value states in pillarbox, one value
state with two fields in Spark's ``transformWithState``. Both checkpoints are made from the same rows, in two epochs:
one row for each key, then 1,000 rows. Making Spark's checkpoint takes most of the time (some 20,000 keys per second).
With ``--checkpoints DIR``, both are stored there, and reused by the next run with as many keys. The works (``--works``
selects some):

  read       ``pillarbox.read_state`` to the end, and Spark's own reader (the ``statestore`` format) on the checkpoint
             of ``transformWithState``: rows per second, and their ratio
  rescale    ``pillarbox.rescale`` from two partitions to one, and Spark's own repartitioning of the checkpoint of
             ``transformWithState``: seconds, and their ratio
  savepoint  ``pillarbox.savepoint``, divided by the time to read the same state and to write its rows from Spark's
             memory to Parquet
  start      ``env.from_savepoint`` on a new checkpoint, divided by a restart from the checkpoint: from building the
             query to the first rows at the sink, each in a new process

All sides take turns, and the results are medians of the rounds. Each has its processor time, and the largest memory of
Java, of all Python processes, and of one Python process. The results are checked: the number of keys and the sums of
all state that was read (in the warm-up round only, because all rounds read the same checkpoint), of the state after
rescaling, and of the savepoint; and each row that a started query emits. ``--minutes`` limits the whole run: no round
begins that would probably exceed the limit, but each work has at least one round that counts.

In the last line, ``ratio`` is the ratio of ``read``, and ``ratios`` has all ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.contest import add_names
from benchmarks.harness.machine import Measured
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import STATE_STORE, SparkSide, run_to_the_end
from benchmarks.harness.turns import extent, in_turn, medians, rounded, table
from benchmarks.report.words import page
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor

SIDES = {"pillarbox": "pillarbox", "spark": "transformWithState"}
# Works, with the sides that take turns.
WORKS = {
    "read": tuple(SIDES),
    "rescale": tuple(SIDES),
    "savepoint": ("pillarbox",),
    "start": ("savepoint", "checkpoint"),
}
PARTITIONS = 2
TOUCHED = 1_000
SCHEMA = "key LONG, at LONG"
OUTPUT = "key LONG, n LONG"
UID = "count"
SMALL = {"keys": 20_000, "rounds": 1, "memory": "1g"}
_STORE = "spark__sql__streaming__stateStore__"
# Spark's side writes a complete snapshot of the state in each epoch, so its reader need not first replay the changes of
# millions of keys. pillarbox sets its own settings.
SETTINGS = {
    _STORE + "providerClass": STATE_STORE,
    _STORE + "rocksdb__changelogCheckpointing__enabled": "false",
}


class Count(KeyedProcessFunction):
    """Stores a count and the time of the last row. Emits a key's count for each row."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.at = ctx.get_state(ValueStateDescriptor("at", Types.LONG()))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.at.update(row.at)
        yield row.key, n


class SparkCount(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.state = handle.getValueState("state", "n LONG, at LONG")

    def handleInputRows(self, key, rows, timerValues):
        n, _ = self.state.get() or (0, 0)
        for row in rows:
            n, at = n + 1, row.at
            yield Row(key=key[0], n=n)
        self.state.update((n, at))

    def close(self):
        pass


class Rows:
    """The rows of all epochs, as Parquet files, and the expected state after them."""

    def __init__(self, keys: int) -> None:
        random = np.random.default_rng(7)
        touched = [random.choice(keys, min(TOUCHED, keys), replace=False) for _ in range(2)]
        self._parts = [random.permutation(keys), touched[0]]
        self._waiting = touched[1]
        self._keys = keys

    @staticmethod
    def _at(keys: Any, epoch: int) -> Any:
        return keys % 86_400_000 + epoch

    def write(self, directory: Path, epoch: int) -> None:
        """Write the rows of an epoch. Epoch 2 is for the restarted query."""
        directory.mkdir(parents=True, exist_ok=True)
        keys = self._waiting if epoch == 2 else self._parts[epoch]
        for part in range(PARTITIONS):
            part_keys = keys[part::PARTITIONS]
            pq.write_table(
                pa.table({"key": part_keys, "at": self._at(part_keys, epoch)}), directory / f"{epoch}-{part}.parquet"
            )

    def state(self) -> list[int]:
        """Return the number of keys, the sum of counts and the sum of times after the first two epochs."""
        at = self._at(np.arange(self._keys), 0)
        at[self._parts[1]] += 1
        return [self._keys, self._keys + len(self._parts[1]), int(at.sum())]

    def started(self) -> list[tuple[int, int]]:
        """Return the rows that a restarted query must emit."""
        before = set(self._parts[1].tolist())
        return sorted((key, 2 + (key in before)) for key in self._waiting.tolist())


def result(side: str, source: DataFrame, savepoint: str | None = None) -> DataFrame:
    """Return a side's query, which starts from ``savepoint``, if given."""
    if side == "spark":
        return source.groupBy("key").transformWithState(SparkCount(), OUTPUT, "append", "None")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(PARTITIONS)
    if savepoint is not None:
        env.from_savepoint(savepoint)
    return env.from_dataframe(source).key_by("key").process(Count()).uid(UID).to_dataframe(OUTPUT)


# -- on Spark, in its own process --


class Operated(SparkSide):
    """A side that operates on checkpoints. Each work returns its measurements by name."""

    def __init__(self, keys: int, checkpoints: str, directory: str, memory: str) -> None:
        super().__init__(directory, {"spark__driver__memory": memory, **SETTINGS})
        self._rows = Rows(keys)
        self._checkpoints = Path(checkpoints)

    def _source(self, side: str) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).parquet(str(self._checkpoints / f"{side}-in"))

    def make(self, side: str) -> None:
        """Make the checkpoint of a side."""
        for begun in (side, f"{side}-in"):
            shutil.rmtree(self._checkpoints / begun, ignore_errors=True)
        for epoch in range(2):
            self._rows.write(self._checkpoints / f"{side}-in", epoch)
            writer = result(side, self._source(side)).writeStream.format("noop").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(self._checkpoints / side))
            (pillarbox.start(writer) if side == "pillarbox" else writer.start()).awaitTermination()
        (self._checkpoints / f"{side}.made").touch()

    def _copied(self, side: str) -> str:
        """Return a copy of a side's checkpoint, made of links, because Spark never changes existing files."""
        path = self.directory / f"{side}-{time.monotonic_ns()}"
        shutil.copytree(self._checkpoints / side, path, copy_function=os.link)
        return str(path)

    def _state(self, side: str, checkpoint: str) -> DataFrame:
        if side == "pillarbox":
            return pillarbox.read_state(self.spark, checkpoint, UID)
        read = self.spark.read.format("statestore").option("stateVarName", "state").load(checkpoint)
        return read.select("key.key", "value.n", "value.at", "partition_id")

    def _wrong(self, rows: DataFrame) -> str:
        """Return how rows of the state differ from the expected rows, or ""."""
        sums = list(rows.agg(F.count("key"), F.sum("n"), F.sum("at")).first() or ())
        expected = self._rows.state()
        return "" if sums == expected else f"{sums}, not {expected}"

    def read(self, side: str, index: int) -> dict[str, Any]:
        """Read all state."""
        checkpoint = str(self._checkpoints / side)
        figures = _measured(lambda: _consume(self._state(side, checkpoint)))
        return {side: {**figures, "wrong": self._wrong(self._state(side, checkpoint)) if index < 0 else ""}}

    def rescale(self, side: str, index: int) -> dict[str, Any]:
        """Rescale the state to half as many partitions."""
        checkpoint, parallelism = self._copied(side), PARTITIONS // 2
        manager: Any = self.spark._streamingCheckpointManager
        if side == "pillarbox":
            figures = _measured(lambda: pillarbox.rescale(self.spark, checkpoint, parallelism))
        else:
            figures = _measured(lambda: manager.repartition(checkpoint, parallelism))
        wrong = self._wrong(self._state(side, checkpoint))
        shutil.rmtree(checkpoint)
        return {side: {**figures, "wrong": wrong}}

    def savepoint(self, side: str, index: int) -> dict[str, Any]:
        """Save the state. For comparison, read it, and write its rows from memory to Parquet."""
        checkpoint, target, beside = (
            str(self._checkpoints / side),
            self._checkpoints / "savepoint",
            self.directory / "beside",
        )
        shutil.rmtree(target, ignore_errors=True)
        saving = _measured(lambda: pillarbox.savepoint(self.spark, checkpoint, str(target)))
        wrong = self._wrong(self.spark.read.parquet(f"{target}/state/{UID}"))
        state = self._state(side, checkpoint)
        reading = _measured(lambda: _consume(state))
        state.persist().count()
        writing = _measured(lambda: state.write.mode("overwrite").parquet(str(beside)))
        state.unpersist()
        saved, written = _mib(target), _mib(beside)
        shutil.rmtree(beside)
        return {
            side: {**saving, "wrong": wrong, "mib": saved},
            "reading": reading,
            "writing": {**writing, "mib": written},
        }

    def start(self, side: str, index: int) -> dict[str, Any]:
        """Start a query from a savepoint or checkpoint, with rows waiting. Returns the seconds until its output."""
        self._rows.write(self._checkpoints / "pillarbox-in", 2)
        savepoint = str(self._checkpoints / "savepoint") if side == "savepoint" else None
        checkpoint = self._copied("pillarbox") if savepoint is None else str(self.directory / "new")
        with Measured() as all_of_it:
            seconds, out, _ = run_to_the_end(
                lambda: result("pillarbox", self._source("pillarbox"), savepoint), Path(checkpoint)
            )
        shutil.rmtree(checkpoint)
        # Otherwise, later runs would include these rows in their checkpoints.
        for path in (self._checkpoints / "pillarbox-in").glob("2-*"):
            path.unlink()
        expected = self._rows.started()
        wrong = "" if sorted(map(tuple, out)) == expected else f"{len(out)} other rows than the {len(expected)}"
        return {side: {**_figures(all_of_it), "seconds": seconds, "wrong": wrong}}


def _measured(work: Callable[[], Any]) -> dict[str, Any]:
    with Measured() as measured:
        work()
    return _figures(measured)


def _figures(measured: Measured) -> dict[str, Any]:
    return {"seconds": measured.seconds, "processor_s": measured.processor_s, "peak_mib": measured.peak_mib}


def _consume(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _mib(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) // 2**20


# -- in the benchmark's process --


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of each work, as far as there is time")
    parser.add_argument("--minutes", type=float, default=22, help="how long all of it may take, about")
    add_names(parser, "--works", WORKS)
    parser.add_argument("--checkpoints", help="where the checkpoints are kept, and found again")
    parser.add_argument("--memory", default="3g", help="of Spark")


def rounds_until(until: float, first: int, rounds: int) -> Iterator[int]:
    """Yield the numbers of a work's rounds until time runs out. Rounds with negative numbers warm up."""
    took = 0.0
    for index in range(first, rounds):
        began = time.monotonic()
        if index > 0 and began + took > until:
            print(f"no time for more than {index} rounds", flush=True)
            return
        yield index
        took = time.monotonic() - began


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    begun = time.monotonic()
    base = Path(arguments.checkpoints or directory)
    checkpoints = base / f"{arguments.keys}"
    checkpoints.mkdir(parents=True, exist_ok=True)
    measured: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    wrong: list[str] = []

    def new_side(scratch: str) -> Side:
        return Side(Operated, keys=arguments.keys, checkpoints=checkpoints, directory=scratch, memory=arguments.memory)

    def ask(side: Side, work: str, name: str, index: int) -> None:
        for part, answer in side.ask(work, side=name, index=index).items():
            if answer.get("wrong"):
                wrong.append(f"{work}, {part}: {answer['wrong']}")
            if index >= 0:
                measured[work, part].append(answer)
            figures = f"{answer['seconds']:8.2f} s  {'WRONG' if answer.get('wrong') else ''}"
            print(f"{time.monotonic() - begun:6.0f} s  round {index:2}  {work:10}{part:12}{figures}", flush=True)

    # Next to the checkpoints, which can then be copied as links.
    with tempfile.TemporaryDirectory(prefix="bench-operate-", dir=base) as scratch:
        for name in SIDES if {"read", "rescale"} & {*arguments.works} else ("pillarbox",):
            if not (checkpoints / f"{name}.made").exists():
                side = new_side(scratch)
                side.ask("make", side=name)
                side.close()
                print(f"{time.monotonic() - begun:6.0f} s  {SIDES[name]} has {arguments.keys:,} keys", flush=True)
        for number, work in enumerate(arguments.works):
            left = len(arguments.works) - number
            until = time.monotonic() + (begun + arguments.minutes * 60 - time.monotonic()) / left
            side = new_side(scratch)
            if work == "start" and not (checkpoints / "savepoint").exists():
                side.ask("savepoint", side="pillarbox", index=-1)
            for index in rounds_until(until, 0 if work == "start" else -1, arguments.rounds):
                for name in in_turn(WORKS[work], index):
                    if work == "start":  # each in a new process
                        side.close()
                        side = new_side(scratch)
                    ask(side, work, name, index)
            side.close()
        shutil.rmtree(checkpoints / "savepoint", ignore_errors=True)
    ratios = {
        work: ratio_of(work, {part: rounds for (of, part), rounds in measured.items() if of == work})
        for work in arguments.works
    }
    named = {f"{work}, {SIDES.get(part, part)}": rounds for (work, part), rounds in measured.items()}
    summary = {
        "ratios": rounded(ratios, 3),
        "seconds": {name: [round(figures["seconds"], 2) for figures in rounds] for name, rounds in named.items()},
        "processor_s": {
            name: [round(figures["processor_s"], 2) for figures in rounds] for name, rounds in named.items()
        },
        "peak_mib": {
            name: {what: max(figures["peak_mib"][what] for figures in rounds) for what in rounds[0]["peak_mib"]}
            for name, rounds in named.items()
        },
        "written_mib": {part: rounds[-1]["mib"] for (_, part), rounds in measured.items() if "mib" in rounds[-1]},
        "keys": arguments.keys,
        "minutes": round((time.monotonic() - begun) / 60, 1),
    }
    return Outcome("operate", ratios.get("read", next(iter(ratios.values()))), summary, wrong)


def ratio_of(work: str, measured: dict[str, list[dict[str, Any]]]) -> float:
    """Return a work's ratio."""
    middle = medians({part: [figures["seconds"] for figures in several] for part, several in measured.items()})
    if work == "read":
        return middle["spark"] / middle["pillarbox"]
    if work == "rescale":
        return middle["pillarbox"] / middle["spark"]
    if work == "savepoint":
        return middle["pillarbox"] / (middle["reading"] + middle["writing"])
    return middle["savepoint"] / middle["checkpoint"]


def present(result: Result, charts: Path | None) -> str:
    rows = [
        [what, f"{statistics.median(seconds):.1f}", extent(seconds, 1)] for what, seconds in result["seconds"].items()
    ]
    memory = [[what, *(f"{mib:,}" for mib in most.values())] for what, most in result["peak_mib"].items()]
    return page(
        table([f"{result['keys']:,} keys", "seconds", "rounds"], rows),
        table(["", "ratio"], [[work, f"{ratio:.2f}"] for work, ratio in result["ratios"].items()]),
        table(["largest memory, MiB", "Java", "all Python processes", "one of these"], memory),
    )


BLOCKS = {"operate": shown(present, "operate")}
