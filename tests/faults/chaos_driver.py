"""A driver process for ``make chaos``: ``python -m tests.faults.chaos_driver HOME STATUS``.

It runs the programs that HOME/shape.json says on HOME's input to its end, and then a bounded one. Lines of its
standard input are orders: ``start PLACE``, with checkpoints and output there; ``start-first PLACE``, the first of the
programs only; ``stop``. Of the first program, while it is stopped: ``finish PLACE`` runs an epoch that was begun and
not committed; ``rescale PLACE`` changes it to the parallelism that the shape has by now; ``savepoint PLACE`` writes the
savepoint that the shape names next. It says in the file STATUS, a line of JSON each, what has become of them. It ends
with its input, or when all is done.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pillarbox
from pillarbox import CheckpointMismatchError
from pillarbox._runtime.spark.session import local_session
from pillarbox._state.savepoint import LocalSavepoint
from tests.faults import async_job, columns_job, job, rolling_job, second_job
from tests.faults.job import Fault, Faults, FileSink, read_fixed_epochs
from tests.faults.others import all_others
from tests.forked_python import forked_python

# Drivers do not live for long: they need not compile well, nor collect garbage in several threads.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options() -> str:
    """Return the options of the driver's JVM: it takes its classes from an archive, or leaves one when it ends."""
    archive = os.environ.get("PILLARBOX_CHAOS_ARCHIVE")
    if archive is None:
        return JAVA_OPTIONS
    which = "SharedArchiveFile" if os.path.exists(archive) else "ArchiveClassesAtExit"
    return f"{JAVA_OPTIONS} -Xlog:disable -XX:{which}={archive}"


_DONE = {"finish": "finished", "rescale": "rescaled", "savepoint": "written"}


class Programs:
    """The queries that run."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.queries: list[StreamingQuery] = []
        self.files = -1

    def _shape(self, place: Path | None = None) -> dict[str, Any]:
        """Return what is to run, by now; a copy has a shape of its own."""
        folder = self.home if place is None or not (place / "shape.json").exists() else place
        found: dict[str, Any] = json.loads((folder / "shape.json").read_text())
        return found

    def disk_is_full(self, df: DataFrame, batch: int) -> None:
        """Fail as often as was ordered."""
        for wanted in self.home.glob("sink is full *"):
            wanted.rename(self.home / f"done {wanted.name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"batch {batch}")

    def start(self, place: Path, *, all_of_them: bool) -> None:
        """Start the queries, wherever their checkpoints are."""
        shape, faults = self._shape(place), self._faults()
        self.sink = FileSink(place / "out", self.disk_is_full if all_of_them else None, shape["shift"])
        self.squares = FileSink(place / "squares")
        self.frames = FileSink(place / "frames")
        self.files = -1
        self.queries = [_start(self._first(place, self.sink))]
        if all_of_them:
            frames = columns_job.build(read_fixed_epochs(self.spark, self.home / "in.parquet"))
            self.queries.append(_start(_writer(frames, self.frames, place / "frames checkpoint")))
        if shape["mode"] and all_of_them:
            events = read_fixed_epochs(self.spark, self.home / "in.parquet")
            asked = second_job.build(events, shape["service"], shape["mode"], faults)
            self.queries.append(_start(_writer(asked, self.squares, place / "squares checkpoint")))

    def _faults(self) -> Faults:
        planned = [Fault(one["place"], _hashable(one["at"]), one["action"]) for one in self._shape()["faults"]]
        return Faults(self.home / "faults", planned)

    def _first(self, place: Path, sink: FileSink) -> DataStreamWriter:
        """Return the writer of the first program, which starts from a savepoint where the shape names one."""
        shape = self._shape(place)
        numbers = {name: shape[name] for name in ("parallelism", "max_parallelism", "savepoint")}
        events = read_fixed_epochs(self.spark, self.home / "in.parquet")
        df = job.build(events, self._faults(), **numbers, further=all_others)
        return _writer(df, sink, place / shape["checkpoint"])

    def finish(self, place: Path) -> None:
        """Run an epoch of the first program that was begun, and is not committed."""
        shape = self._shape()
        checkpoint = place / shape["checkpoint"]
        newest = [max(map(int, filter(str.isdigit, os.listdir(checkpoint / log)))) for log in ("offsets", "commits")]
        if newest[0] > newest[1]:
            sink = FileSink(place / "out", shift=shape["shift"])
            self._first(place, sink).trigger(once=True).start().awaitTermination()

    def rescale(self, place: Path) -> None:
        """Change the first program to another parallelism."""
        shape = self._shape()
        pillarbox.rescale(self.spark, str(place / shape["checkpoint"]), shape["parallelism"])

    def savepoint(self, place: Path) -> None:
        """Write a savepoint of the first program."""
        shape = self._shape()
        directory = shape["next savepoint"]
        with suppress(CheckpointMismatchError):
            LocalSavepoint(directory)
            return  # somebody was killed right behind it
        pillarbox.savepoint(self.spark, str(place / shape["checkpoint"]), directory)

    def collect(self) -> None:
        """Write the results of the bounded program."""
        events = self.spark.read.parquet(str(self.home / "in.parquet"))
        found = rolling_job.first_sums(events, self._faults())
        part = self.home / "first sums.new"
        part.write_text(json.dumps(found))
        part.rename(self.home / "first sums")

    def stop(self) -> None:
        """Stop the queries."""
        # Also one that could be started while another could not.
        for query in self.spark.streams.active:
            query.stop()
        self.queries = []

    def failure(self) -> str | None:
        """Return what a query has died of."""
        for query in self.queries:
            if not query.isActive:
                return str(query.exception() or "a query has ended")
        return None

    def is_done(self) -> bool:
        """Tell whether all has come out."""
        if any(query.lastProgress is None for query in self.queries):
            return False  # the epoch that another driver was killed in is run again first
        squares = [path.name for path in self.squares.directory.glob("[0-9]*.json")]
        batches = [len(sink.batches()) for sink in (self.sink, self.frames)]
        files = sum(batches) + len(squares)
        if files == self.files or min(batches) < self._shape()["epochs"]:
            return False
        self.files = files
        return not self._shape()["mode"] or _count(self.squares) >= self._shape()["records"]


def _writer(df: DataFrame, sink: FileSink, checkpoint: Path) -> DataStreamWriter:
    return df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


def _start(writer: DataStreamWriter) -> StreamingQuery:
    return writer.trigger(processingTime="0 seconds").start()


def _count(squares: FileSink) -> int:
    return sum(map(len, async_job.batches_of(squares).values()))


def main(home: Path, status: Path, python: str) -> None:
    shape: dict[str, Any] = json.loads((home / "shape.json").read_text())

    def say(what: str, why: str = "") -> None:
        with status.open("a") as file:
            file.write(json.dumps([what, why]) + "\n")

    orders: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("end")

    threading.Thread(target=listen, daemon=True).start()
    spark = local_session(
        shape["cores"],
        app_name="pillarbox-chaos-driver",
        **({"spark__master": shape["master"]} if shape["master"] else {}),
        spark__driver__memory="1g",
        spark__driver__extraJavaOptions=java_options(),
        spark__executor__extraJavaOptions=JAVA_OPTIONS,
        spark__log__level="ERROR",
        spark__python__daemon__module="tests.daemon",
        spark__local__dir=str(status.parent / "local"),
        spark__sql__warehouse__dir=str(status.parent / "warehouse"),
    )
    spark.sparkContext.pythonExec = python
    say("ready")
    programs = Programs(spark, home)
    while True:
        try:
            order = orders.get(timeout=0.05)
            if order == "end":
                break
            what, _, place = order.partition(" ")
            if what in _DONE:
                getattr(programs, what)(Path(place))
                say(_DONE[what])
            elif what.startswith("start"):
                programs.start(Path(place), all_of_them=what == "start")
                say("started")
            else:
                failure = programs.failure()
                programs.stop()
                say("stopped", failure or "")
        except queue.Empty:
            failure = programs.failure()
            if failure is not None:
                programs.stop()
                say("failed", failure)
            elif programs.queries and programs.is_done():
                programs.stop()
                programs.collect()
                say("done")
                break
        except Exception as error:  # of start()
            programs.stop()
            say("failed", str(error))
    spark.stop()


def _hashable(at: Any) -> Any:
    return tuple(at) if isinstance(at, list) else at


if __name__ == "__main__":
    with forked_python() as python:
        main(Path(sys.argv[1]), Path(sys.argv[2]), python)
