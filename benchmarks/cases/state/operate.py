# SPDX-License-Identifier: Apache-2.0
"""A query with much state, from outside: how long it takes to read it, to rescale it, to save it, to start from that.

Each key has a count and the time of its last row, both of declared types: in pillarbox two value states, in Spark's own
``transformWithState`` one with two fields. Both checkpoints are made of the same rows, in two epochs: one row for each
key, then 1,000 rows. Making Spark's takes most of the time (some 20,000 keys a second); with ``--checkpoints DIR`` both
are kept there, and found again by the next run with as many keys. The works, all of them or those in ``--works``:

  read       ``pillarbox.read_state`` to the end, beside Spark's own reader (the ``statestore`` format) on the
             checkpoint of ``transformWithState``: rows per second, and the ratio of these
  rescale    ``pillarbox.rescale`` from two partitions to one, beside Spark's own repartitioning of the checkpoint of
             ``transformWithState``: seconds, and their ratio
  savepoint  ``pillarbox.savepoint``, over the time to read the same state and Spark's time to write these rows, which
             it has in memory, to Parquet
  start      ``env.from_savepoint`` on a new checkpoint, over a restart from the checkpoint: from building the query to
             the first rows at the sink, each in a new process

All sides take turns; medians of the rounds count. Each has its processor time beside it, and the largest memory of
Java, of all Python processes, and of one of them. Results are checked: the number of keys and the sums of all that was
read (in the round that warms up: it is the same checkpoint in all), of what is there behind the rescaling, and in the
savepoint; and each row that comes out of a query that was started. ``--minutes`` bounds the whole: no further round is
begun that would probably go beyond it, but each work has one that counts.

In the last line ``ratio`` is that of ``read``, ``ratios`` has all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
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
from benchmarks.harness.case import Outcome, Said, shown
from benchmarks.harness.contest import add_names
from benchmarks.harness.machine import Measured, spark_version
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import STATE_STORE, run_to_the_end
from benchmarks.harness.turns import rounded, table
from benchmarks.report.words import page
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor

WORKS = {"read": "read_state", "rescale": "rescale", "savepoint": "savepoint", "start": "from_savepoint"}
SIDES = {"pillarbox": "pillarbox", "spark": "transformWithState"}
PARTITIONS = 2
TOUCHED = 1_000
SCHEMA = "key LONG, at LONG"
OUTPUT = "key LONG, n LONG"
UID = "count"
SMALL = {"keys": 20_000, "rounds": 1, "memory": "1g"}
_STORE = "spark__sql__streaming__stateStore__"
# Of Spark's own, each epoch leaves a whole copy of the state, so its reader does not have to go through the changes of
# millions of keys first. pillarbox sets for its queries what they need.
SETTINGS = {
    _STORE + "providerClass": STATE_STORE,
    _STORE + "rocksdb__changelogCheckpointing__enabled": "false",
}


class Count(KeyedProcessFunction):
    """A count and the time of the last row. Each row gives its key's count."""

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
    """The rows of all epochs, as files of Parquet, and what the state holds behind them."""

    def __init__(self, keys: int) -> None:
        random = np.random.default_rng(7)
        touched = [random.choice(keys, min(TOUCHED, keys), replace=False) for _ in range(2)]
        self._parts = [random.permutation(keys), touched[0]]
        self._waiting = touched[1]
        self._keys = keys

    @staticmethod
    def _at(keys: Any, epoch: int) -> Any:
        return keys % 86_400_000 + epoch

    def write(self, place: Path, epoch: int) -> None:
        """Write the rows of an epoch; 2 is the one that a query finds which is started again."""
        place.mkdir(parents=True, exist_ok=True)
        keys = self._waiting if epoch == 2 else self._parts[epoch]
        for part in range(PARTITIONS):
            mine = keys[part::PARTITIONS]
            pq.write_table(pa.table({"key": mine, "at": self._at(mine, epoch)}), place / f"{epoch}-{part}.parquet")

    def state(self) -> list[int]:
        """Return the number of keys, and the sums of counts and of times, behind the first two epochs."""
        at = self._at(np.arange(self._keys), 0)
        at[self._parts[1]] += 1
        return [self._keys, self._keys + len(self._parts[1]), int(at.sum())]

    def started(self) -> list[tuple[int, int]]:
        """Return the rows that come out of a query that is started again."""
        before = set(self._parts[1].tolist())
        return sorted((key, 2 + (key in before)) for key in self._waiting.tolist())


def result(side: str, source: DataFrame, savepoint: str | None = None) -> DataFrame:
    """Return the query of a side; from a savepoint, if one is given."""
    if side == "spark":
        return source.groupBy("key").transformWithState(SparkCount(), OUTPUT, "append", "None")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(PARTITIONS)
    if savepoint is not None:
        env.from_savepoint(savepoint)
    return env.from_dataframe(source).key_by("key").process(Count()).uid(UID).to_dataframe(OUTPUT)


# -- on Spark, in a process of its own --


class Operated:
    """A side with a Spark, which operates checkpoints."""

    def __init__(self, keys: int, directory: str, memory: str) -> None:
        self._rows = Rows(keys)
        self._directory = Path(directory)
        self._scratch = self._directory / "scratch"
        local = {"spark__driver__memory": memory, "spark__local__dir": str(self._scratch / "local")}
        self._spark = pillarbox.local_session(PARTITIONS, **local, **SETTINGS)

    def _source(self, side: str) -> DataFrame:
        return self._spark.readStream.schema(SCHEMA).parquet(str(self._directory / f"{side}-in"))

    def make(self, side: str) -> None:
        """Make the checkpoint of a side."""
        for epoch in range(2):
            self._rows.write(self._directory / f"{side}-in", epoch)
            writer = result(side, self._source(side)).writeStream.format("noop").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(self._directory / side))
            (pillarbox.start(writer) if side == "pillarbox" else writer.start()).awaitTermination()

    def _state(self, side: str, checkpoint: str) -> DataFrame:
        if side == "pillarbox":
            return pillarbox.read_state(self._spark, checkpoint, UID)
        read = self._spark.read.format("statestore").option("stateVarName", "state").load(checkpoint)
        return read.select("key.key", "value.n", "value.at", "partition_id")

    def _wrong(self, rows: DataFrame) -> str:
        """Return how rows of the state differ from what it must be; empty: they do not."""
        found = list(rows.agg(F.count("key"), F.sum("n"), F.sum("at")).first() or ())
        expected = self._rows.state()
        return "" if found == expected else f"{found}, not {expected}"

    def read(self, side: str, checkpoint: str, *, check: bool) -> dict[str, Any]:
        """Read all of the state."""
        said = _measured(lambda: _consume(self._state(side, checkpoint)))
        return {**said, "wrong": self._wrong(self._state(side, checkpoint)) if check else ""}

    def rescale(self, side: str, checkpoint: str) -> dict[str, Any]:
        """Spread the state over half as many partitions."""
        wanted = PARTITIONS // 2
        manager: Any = self._spark._streamingCheckpointManager
        if side == "pillarbox":
            said = _measured(lambda: pillarbox.rescale(self._spark, checkpoint, wanted))
        else:
            said = _measured(lambda: manager.repartition(checkpoint, wanted))
        return {**said, "wrong": self._wrong(self._state(side, checkpoint))}

    def savepoint(self, checkpoint: str, directory: str) -> dict[str, Any]:
        """Save the state, and look at what was written."""
        said = _measured(lambda: pillarbox.savepoint(self._spark, checkpoint, directory))
        wrong = self._wrong(self._spark.read.parquet(f"{directory}/state/{UID}"))
        return {**said, "wrong": wrong, "mib": _size(Path(directory)) // 2**20}

    def parts(self, checkpoint: str) -> dict[str, Any]:
        """Read the state; write its rows, which are in memory then, to Parquet."""
        state = self._state("pillarbox", checkpoint)
        reading = _measured(lambda: _consume(state))
        state.persist().count()
        beside = self._scratch / "beside"
        writing = _measured(lambda: state.write.mode("overwrite").parquet(str(beside)))
        state.unpersist()
        size = _size(beside)
        shutil.rmtree(beside)
        return {"reading": reading, "writing": {**writing, "mib": size // 2**20}}

    def start(self, checkpoint: str, savepoint: str | None) -> dict[str, Any]:
        """Start a query that finds rows; return the seconds to its first output."""
        with Measured() as all_of_it:
            seconds, out, _ = run_to_the_end(
                lambda: result("pillarbox", self._source("pillarbox"), savepoint), Path(checkpoint)
            )
        expected = self._rows.started()
        wrong = "" if sorted(map(tuple, out)) == expected else f"{len(out)} other rows than the {len(expected)}"
        return {**_said(all_of_it), "seconds": seconds, "wrong": wrong}

    def wait(self) -> None:
        """Write the rows that a query finds which is started again."""
        self._rows.write(self._directory / "pillarbox-in", 2)

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()


def _measured(work: Callable[[], Any]) -> dict[str, Any]:
    with Measured() as measured:
        work()
    return _said(measured)


def _said(measured: Measured) -> dict[str, Any]:
    return {"seconds": measured.seconds, "processor_s": measured.processor_s, "peak_mib": measured.peak_mib}


def _consume(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


# -- in the benchmark's process --


class Comparison:
    """All works.

    Attributes:
        said: the answers of each work's rounds, by side.
        wrong: results that are wrong.
    """

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self._arguments = arguments
        self._directory = directory
        self._made = Path(arguments.checkpoints or directory / "made") / f"{arguments.keys}"
        self._begun = time.monotonic()
        self._left = [*arguments.works]
        self.said: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.wrong: list[str] = []

    def _side(self) -> Side:
        arguments = self._arguments
        return Side(Operated, keys=arguments.keys, directory=self._made, memory=arguments.memory)

    def _checkpoint(self, side: str) -> str:
        """Return a copy of a side's checkpoint, by links: Spark never writes into a file that is there."""
        place = self._directory / f"{side}-{time.monotonic_ns()}"
        shutil.copytree(self._made / side, place, copy_function=os.link)
        return str(place)

    def make(self) -> None:
        """Make the checkpoints that are not there yet."""
        for side in SIDES if {"read", "rescale"} & {*self._arguments.works} else ("pillarbox",):
            if (self._made / f"{side}.made").exists():
                continue
            started = time.monotonic()
            for begun in (side, f"{side}-in"):
                shutil.rmtree(self._made / begun, ignore_errors=True)
            with_spark = self._side()
            with_spark.ask("make", side=side)
            with_spark.close()
            (self._made / f"{side}.made").touch()
            print(f"{SIDES[side]}: {self._arguments.keys:,} keys in {time.monotonic() - started:.0f} s", flush=True)

    def run(self) -> None:
        """Do all rounds of all works."""
        for work in self._arguments.works:
            getattr(self, f"_{work}")()
            self._left.remove(work)

    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _rounds(self, first: int = -1) -> Iterator[int]:
        """Return the numbers of a work's rounds, as far as there is time for them; -1 warms up."""
        until = self.elapsed() + (self._arguments.minutes * 60 - self.elapsed()) / len(self._left)
        took = 0.0
        for index in range(first, self._arguments.rounds):
            began = self.elapsed()
            if index > 0 and began + took > until:
                print(f"{began:6.0f} s  {self._left[0]:10}no time for more than {index} rounds", flush=True)
                return
            yield index
            took = self.elapsed() - began

    def _take(self, work: str, side: str, said: dict[str, Any], *, counts: bool = True) -> None:
        if said.get("wrong"):
            self.wrong.append(f"{work}, {side}: {said['wrong']}")
        if counts:
            self.said.setdefault((work, side), []).append(said)
        agrees = {None: "", "": "as expected"}.get(said.get("wrong"), "WRONG")
        memory = ", ".join(f"{what} {mib:,}" for what, mib in said["peak_mib"].items())
        figures = f"{said['seconds']:8.2f} s  (processor {said['processor_s']:.1f} s, MiB: {memory})"
        notes = f"{agrees}{'' if counts else '  (warm-up)'}"
        print(f"{self.elapsed():6.0f} s  {work:10}{side:12}{figures}  {notes}", flush=True)

    def _read(self) -> None:
        with_spark = self._side()
        for index in self._rounds():
            for side in SIDES:
                said = with_spark.ask("read", side=side, checkpoint=str(self._made / side), check=index < 0)
                self._take("read", side, said, counts=index >= 0)
        with_spark.close()

    def _rescale(self) -> None:
        with_spark = self._side()
        for index in self._rounds():
            for side in SIDES:
                checkpoint = self._checkpoint(side)
                said = with_spark.ask("rescale", side=side, checkpoint=checkpoint)
                self._take("rescale", side, said, counts=index >= 0)
                shutil.rmtree(checkpoint)
        with_spark.close()

    def _savepoint(self) -> None:
        with_spark = self._side()
        checkpoint, target = str(self._made / "pillarbox"), self._directory / "savepoint"
        for index in self._rounds():
            shutil.rmtree(target, ignore_errors=True)
            said = with_spark.ask("savepoint", checkpoint=checkpoint, directory=str(target))
            self._take("savepoint", "pillarbox", said, counts=index >= 0)
            for part, each in with_spark.ask("parts", checkpoint=checkpoint).items():
                self._take("savepoint", part, each, counts=index >= 0)
        with_spark.close()

    def _start(self) -> None:
        with_spark = self._side()
        savepoint = self._directory / "savepoint"
        if not savepoint.exists():
            with_spark.ask("savepoint", checkpoint=str(self._made / "pillarbox"), directory=str(savepoint))
        with_spark.ask("wait")
        with_spark.close()
        for _ in self._rounds(0):
            for side in ("savepoint", "checkpoint"):
                of_savepoint = side == "savepoint"
                checkpoint = str(self._directory / "new") if of_savepoint else self._checkpoint("pillarbox")
                with_spark = self._side()
                saved = str(savepoint) if of_savepoint else None
                said = with_spark.ask("start", checkpoint=checkpoint, savepoint=saved)
                with_spark.close()
                self._take("start", side, said)
                shutil.rmtree(checkpoint)
        # They would be part of the checkpoints that a later run makes.
        for path in (self._made / "pillarbox-in").glob("2-*"):
            path.unlink()

    def ratios(self) -> dict[str, float]:
        """Return the ratio of each work."""
        found = {}
        for work in self._arguments.works:
            middle = {side: statistics.median(seconds_of(said)) for (of, side), said in self.said.items() if of == work}
            if work == "read":
                found[work] = middle["spark"] / middle["pillarbox"]
            elif work == "rescale":
                found[work] = middle["pillarbox"] / middle["spark"]
            elif work == "savepoint":
                found[work] = middle["pillarbox"] / (middle["reading"] + middle["writing"])
            else:
                found[work] = middle["savepoint"] / middle["checkpoint"]
        return found


def seconds_of(said: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of some rounds."""
    return [float(each["seconds"]) for each in said]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of each work, as far as there is time")
    parser.add_argument("--minutes", type=float, default=22, help="how long all of it may take, about")
    add_names(parser, "--works", WORKS)
    parser.add_argument("--checkpoints", help="where the checkpoints are kept, and found again")
    parser.add_argument("--memory", default="3g", help="of Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    if arguments.checkpoints:
        Path(arguments.checkpoints).mkdir(parents=True, exist_ok=True)
    # Beside the checkpoints, so that these can be copied by links.
    with tempfile.TemporaryDirectory(prefix="bench-operate-", dir=arguments.checkpoints or directory) as place:
        comparison = Comparison(arguments, Path(place))
        comparison.make()
        comparison.run()
    ratios = comparison.ratios()
    named = {f"{work}, {SIDES.get(side, side)}": said for (work, side), said in comparison.said.items()}
    said = {
        "ratios": rounded(ratios, 3),
        "seconds": {name: rounded(seconds_of(each), 2) for name, each in named.items()},
        "processor_s": {name: [round(one["processor_s"], 2) for one in each] for name, each in named.items()},
        "peak_mib": {
            name: {what: max(one["peak_mib"][what] for one in each) for what in each[0]["peak_mib"]}
            for name, each in named.items()
        },
        "written_mib": {side: each[-1]["mib"] for (_, side), each in comparison.said.items() if "mib" in each[-1]},
        "keys": arguments.keys,
        "minutes": round(comparison.elapsed() / 60, 1),
        "spark": spark_version(),
    }
    return Outcome("operate", ratios.get("read", next(iter(ratios.values()))), said, comparison.wrong)


def present(said: Said, charts: Path | None) -> str:
    rows = [
        [what, f"{sorted(seconds)[len(seconds) // 2]:.1f}", f"{min(seconds):.1f} to {max(seconds):.1f}"]
        for what, seconds in said["seconds"].items()
    ]
    ratios = [[work, f"{ratio:.2f}"] for work, ratio in said["ratios"].items()]
    return page(
        table([f"{said['keys']:,} keys", "seconds", "rounds"], rows),
        table(["", "ratio"], ratios),
        table(
            ["largest memory, MiB", "Java", "all Python processes", "one of these"],
            [[what, *(f"{mib:,}" for mib in most.values())] for what, most in said["peak_mib"].items()],
        ),
    )


BLOCKS = {"operate": shown(present, "operate")}
