"""A driver process for ``make chaos``: ``python -m tests.faults.chaos.driver HOME STATUS``.

Runs the programs that HOME/shape.json describes until HOME's input ends, and then a bounded program. Each line of
standard input is an order. PLACE is a folder with a checkpoint and output.

- ``start PLACE`` starts the programs, and ``start-first PLACE`` only the first program.
- ``stop`` stops the programs.
- ``read-READER PLACE`` reads the first program's checkpoint while the program runs.

The other orders need stopped programs:

- ``finish PLACE`` repeats each uncommitted epoch.
- ``available PLACE`` runs the second program until all due work is done.
- ``rescale PLACE`` changes the first program to the parallelism in ``shape.json``.
- ``savepoint PLACE`` writes the next savepoint of ``shape.json``.

Results are JSON lines in STATUS. The process exits when standard input is closed or everything is done.

If a sink finds a file ``die in NAME ...`` in HOME after a write, it kills the driver before Spark commits the batch. If
a sink finds ``stop NAME ...``, it stops its query.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pillarbox
from pillarbox import CheckpointMismatchError
from pillarbox._runtime.spark.reading.inspection import inspect_checkpoint
from pillarbox._runtime.spark.session.local_session import local_session
from pillarbox._state.savepoint.files import LocalSavepoint
from tests.faults.chaos.sinks import ChaosSink, LoggedFiles
from tests.faults.parts import columns
from tests.faults.parts.part import Joined, streams_of
from tests.faults.processes import members
from tests.faults.programs import async_job, job, limited_job, second_job
from tests.faults.programs.job import Fault, Faults, FileSink, read_events, read_fixed_epochs
from tests.operators_table.table import chaos_parts
from tests.support.class_archive import SHORT_LIVED
from tests.support.forked_python import forked_python


def java_options() -> str:
    archive = os.environ.get("PILLARBOX_CHAOS_ARCHIVE")
    if archive is None:
        return SHORT_LIVED
    which = "SharedArchiveFile" if os.path.exists(archive) else "ArchiveClassesAtExit"
    return f"{SHORT_LIVED} -Xlog:disable -XX:{which}={archive}"


_DONE = {"finish": "finished", "available": "exhausted", "rescale": "rescaled", "savepoint": "written"}
HANGS = 300  # seconds that nothing takes, however busy the machine is


class Programs:
    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.queries: list[StreamingQuery] = []
        self.files = -1

    def _shape(self, run_folder: Path | None = None) -> dict[str, Any]:
        folder = self.home if run_folder is None or not (run_folder / "shape.json").exists() else run_folder
        document: dict[str, Any] = json.loads((folder / "shape.json").read_text())
        return document

    def disk_is_full(self, df: DataFrame, batch: int) -> None:
        for marker in self.home.glob("sink is full *"):
            marker.rename(self.home / f"done {marker.name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"batch {batch}")

    def start(self, folder: Path, *, all_of_them: bool) -> None:
        shape = self._shape(folder)
        self.sink = self._sink("first", folder / "out", shape, all_of_them=all_of_them)
        self.squares = FileSink(folder / "squares")
        self.frames = folder / "frames"
        self.files = -1
        crossing = shape["crossing"] if all_of_them else None
        writers = [partial(self._first, folder, self.sink)]
        if all_of_them:
            writers.append(partial(self._functions, folder))
        if shape["mode"] and all_of_them:
            writers.append(partial(self._second, folder))
        starts = [partial(_start, shape["starter"], writer) for writer in writers]
        with _Crossing(self.spark, crossing):
            self.queries = _in_threads(starts) if shape["threads"] else [start() for start in starts]

    def _sink(self, name: str, directory: Path, shape: dict[str, Any], *, all_of_them: bool = True) -> FileSink:
        return ChaosSink(
            directory,
            self.disk_is_full if name == "first" and all_of_them else None,
            shape["shift"] if name == "first" else 0,
            knowing=shape["sinks"][name] == "knowing",
            after=partial(self._after, name) if all_of_them else None,
        )

    def _after(self, name: str) -> None:
        orders: dict[str, Callable[[str], None]] = {"die in": _die, "stop": self._stop}
        for what, obey in orders.items():
            for marker in self.home.glob(f"{what} {name} *"):
                marker.rename(self.home / f"done {marker.name}")
                obey(name)

    def _stop(self, name: str) -> None:
        query = next(query for query in self.spark.streams.active if query.name == name)
        threading.Thread(target=query.stop).start()
        while query.isActive:
            time.sleep(0.01)

    def _faults(self) -> Faults:
        planned = [Fault(fault["place"], _hashable(fault["at"]), fault["action"]) for fault in self._shape()["faults"]]
        return Faults(self.home / "faults", planned)

    def _first(self, folder: Path, sink: FileSink) -> DataStreamWriter:
        shape = self._shape(folder)
        numbers = {name: shape[name] for name in ("parallelism", "max_parallelism", "savepoint")}
        events = read_fixed_epochs(self.spark, self.home / "in.parquet")
        further = streams_of(chaos_parts(_joined(shape, "first")))
        df = job.build(events, self._faults(), **numbers, further=further)
        return _writer("first", df, folder / shape["checkpoint"]).foreachBatch(sink)

    def _functions(self, folder: Path) -> DataStreamWriter:
        shape = self._shape()
        events = read_fixed_epochs(self.spark, self.home / "in.parquet")
        df = columns.build(events, _joined(shape, "frames"))
        writer = _writer("frames", df, folder / "frames checkpoint")
        if shape["sinks"]["frames"] == "parquet":
            return writer.format("parquet").option("path", str(self.frames))
        return writer.foreachBatch(self._sink("frames", self.frames, shape))

    def _second(self, run_folder: Path) -> DataStreamWriter:
        """Return the writer of the second program.

        If the program uses processing time, its input arrives file by file, so that only its timers cause epochs
        between files.
        """
        mode: second_job.Mode = self._shape()["mode"]
        waits = mode in second_job.WAITING
        folder = self.home / "squares in"
        events = read_events(self.spark, folder) if waits else read_fixed_epochs(self.spark, self.home / "in.parquet")
        df = second_job.build(events, self._shape()["service"], mode, self._faults())
        return _writer("squares", df, run_folder / "squares checkpoint").foreachBatch(self.squares)

    def finish(self, folder: Path) -> None:
        shape = self._shape()
        first = self._sink("first", folder / "out", shape, all_of_them=False)
        writers: dict[str, Callable[[], DataStreamWriter]] = {
            shape["checkpoint"]: lambda: self._first(folder, first),
            "frames checkpoint": lambda: self._functions(folder),
            "squares checkpoint": lambda: self._second(folder),
        }
        self.frames, self.squares = folder / "frames", FileSink(folder / "squares")
        for checkpoint, writer in writers.items():
            begun, committed = (_newest(folder / checkpoint / log) for log in ("offsets", "commits"))
            if begun > committed:
                writer().trigger(once=True).start().awaitTermination()

    def available(self, folder: Path) -> None:
        self.squares = FileSink(folder / "squares")
        pillarbox.start(self._second(folder).trigger(availableNow=True)).awaitTermination()

    def read(self, reader: str, folder: Path) -> dict[str, Any]:
        checkpoint = str(folder / self._shape()["checkpoint"])
        try:
            epoch, totals = getattr(self, f"_{reader}")(checkpoint)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"epoch": epoch, "totals": totals}

    def _inspect(self, checkpoint: str) -> tuple[int, None]:
        return inspect_checkpoint(self.spark, checkpoint)["epoch"], None

    def _read_state(self, checkpoint: str) -> tuple[int, dict[int, int]]:
        epoch = inspect_checkpoint(self.spark, checkpoint)["last_epoch"]
        return epoch, self._totals(checkpoint, epoch=epoch)

    def _savepoint(self, checkpoint: str) -> tuple[int, dict[int, int]]:
        directory = str(self.home / f"read-{time.time_ns()}")
        pillarbox.savepoint(self.spark, checkpoint, directory)
        return LocalSavepoint(directory).manifest.epoch, self._totals(directory)

    def _totals(self, checkpoint: str, **options: Any) -> dict[int, int]:
        rows = pillarbox.read_state(self.spark, checkpoint, "ledger", **options)
        return {row.key: row.total for row in rows.selectExpr("key::long AS key", "total::long AS total").collect()}

    def rescale(self, folder: Path) -> None:
        shape = self._shape()
        pillarbox.rescale(self.spark, str(folder / shape["checkpoint"]), shape["parallelism"])

    def savepoint(self, folder: Path) -> None:
        shape = self._shape()
        directory = shape["next savepoint"]
        with suppress(CheckpointMismatchError):
            LocalSavepoint(directory)
            return  # killed right after it
        pillarbox.savepoint(self.spark, str(folder / shape["checkpoint"]), directory)

    def collect(self) -> None:
        events = self.spark.read.parquet(str(self.home / "in.parquet"))
        result = limited_job.first_sums(events, self._faults())
        part = self.home / "first sums.new"
        part.write_text(json.dumps(result))
        part.rename(self.home / "first sums")

    def stop(self) -> None:
        # Also one that could be started while another could not.
        for query in self.spark.streams.active:
            query.stop()
        self.queries = []

    def failure(self) -> str | None:
        for query in self.queries:
            if not query.isActive:
                return str(query.exception() or "a query has ended")
        return None

    def is_done(self) -> bool:
        if any(query.lastProgress is None for query in self.queries):
            return False  # the epoch that another driver was killed in is run again first
        squares = [path.name for path in self.squares.directory.glob("[0-9]*.json")]
        is_parquet = self._shape()["sinks"]["frames"] == "parquet"
        frames = LoggedFiles(self.frames) if is_parquet else FileSink(self.frames)
        batches = [len(self.sink.batches()), len(frames.batches())]
        files = sum(batches) + len(squares)
        if files == self.files or min(batches) < self._shape()["epochs"]:
            return False
        self.files = files
        return not self._shape()["mode"] or _count(self.squares) >= self._shape()["records"]


class _Crossing:
    """A thread that writes savepoints of the original checkpoint while a query starts from a savepoint.

    Args:
        paths: the checkpoint and the savepoints' common path prefix, or None for no thread.
    """

    def __init__(self, spark: SparkSession, paths: dict[str, str] | None) -> None:
        self._spark = spark
        self._wanted = paths
        self._is_over = threading.Event()
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> None:
        if self._wanted is not None:
            faulthandler.dump_traceback_later(HANGS, exit=True)
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        if self._wanted is not None:
            self._is_over.set()
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()
            if self._raised:
                raise self._raised[0]

    def _write(self) -> None:
        assert self._wanted is not None
        try:
            while not self._is_over.is_set():
                directory = f"{self._wanted['savepoint']}-{time.time_ns()}"
                pillarbox.savepoint(self._spark, self._wanted["checkpoint"], directory)
                LocalSavepoint(directory)
        except BaseException as error:
            self._raised.append(error)


def _die(name: str) -> None:
    for process in members(os.getpid()):
        if process != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


def _writer(name: str, df: DataFrame, checkpoint: Path) -> DataStreamWriter:
    return df.writeStream.queryName(name).option("checkpointLocation", str(checkpoint))


def _start(starter: str, plan: Callable[[], DataStreamWriter]) -> StreamingQuery:
    writer = plan().trigger(processingTime="0 seconds")
    return pillarbox.start(writer) if starter == "pillarbox" else writer.start()


def _in_threads(starts: Sequence[Callable[[], StreamingQuery]]) -> list[StreamingQuery]:
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        with ThreadPoolExecutor(len(starts)) as pool:
            started = [pool.submit(start) for start in starts]
        return [future.result() for future in started]
    finally:
        faulthandler.cancel_dump_traceback_later()


def _joined(shape: dict[str, Any], name: str) -> Joined:
    bounds, how = shape["joined"][name]
    return Joined(tuple(bounds), how)


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
        spark__executor__extraJavaOptions=SHORT_LIVED,
        spark__log__level="ERROR",
        spark__python__daemon__module="tests.support.daemon",
        spark__pillarbox__homes=shape["homes"],
        spark__local__dir=str(status.parent / "local"),
        spark__sql__warehouse__dir=str(status.parent / "warehouse"),
        spark__sql__streaming__minBatchesToRetain=str(shape["retained"]),
        spark__sql__streaming__fileSink__log__compactInterval=str(shape["compacted"]),
    )
    spark.sparkContext.pythonExec = python
    say("ready")
    programs = Programs(spark, home)
    while True:
        try:
            order = orders.get(timeout=0.05)
            if order == "end":
                break
            what, _, folder = order.partition(" ")
            if what in _DONE:
                getattr(programs, what)(Path(folder))
                say(_DONE[what])
            elif what.startswith("read-"):
                say("read", json.dumps(programs.read(what.removeprefix("read-"), Path(folder))))
            elif what.startswith("start"):
                programs.start(Path(folder), all_of_them=what == "start")
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
