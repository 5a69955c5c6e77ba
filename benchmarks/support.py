# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the machine, tables, processes and what they use, other processes that obey commands."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from pillarbox import TaskReport

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_ANSWER = "@answer "
_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def find_pillarbox() -> None:
    """Make ``import pillarbox`` work here and in Spark's workers, also from a checkout that is not installed."""
    try:
        import pillarbox  # noqa: F401
    except ImportError:
        sys.path.insert(0, str(SOURCE))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))


@contextmanager
def revision_source(revision: str) -> Iterator[Path]:
    """Make the source tree of another revision of this repository available for a while."""
    with tempfile.TemporaryDirectory(prefix="bench-revision-") as directory:
        archive = ["git", "-C", str(ROOT), "archive", revision, "src"]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as tree:
            subprocess.run(["tar", "-x", "-C", directory], stdin=tree.stdout, check=True)
        if tree.returncode:
            raise SystemExit(f"git knows no revision {revision!r}")
        yield Path(directory) / "src"


# -- reports --


def machine() -> dict[str, Any]:
    """Describe what the numbers were taken on."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def spark_version() -> str:
    """Return pyspark's version."""
    import pyspark

    return str(pyspark.__version__)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of which the first cell is a name and the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    first = max(len(row[0]) for row in cells)
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(1, len(head))]
    for row in cells:
        print(row[0].ljust(first) + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths)))


def spread(values: Sequence[float], digits: int = 0) -> list[str]:
    """Return median, lowest and highest as cells of a table."""
    return [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]


def finish(name: str, ratio: float, **more: Any) -> None:
    """Print the last line: one JSON object."""
    print(json.dumps({"name": name, "ratio": round(ratio, 3), **more, **machine()}))


# -- processes, as /proc tells of them (Linux) --


def adopt_orphans() -> None:
    """Let processes below this one whose parents have ended stay below it: else they would be nobody's."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


adopt_orphans()


def descendants(pid: int) -> list[int]:
    """Return the processes below one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and all below it have used, also those that have ended."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        try:
            stat = Path(f"/proc/{each}/stat").read_text()
        except OSError:
            continue
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    return ticks / _TICKS


def cpu_by_program(pid: int) -> dict[str, float]:
    """Return the processor time (ms) of the processes below one that live: Spark's Java, and its Python workers."""
    times = {"java": 0.0, "python": 0.0}
    for each in descendants(pid):
        try:
            program = Path(f"/proc/{each}/comm").read_text().strip()
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times["java" if program == "java" else "python"] += sum(map(int, fields[11:13])) * 1000 / _TICKS
    return times


def memory_kib(pid: int, *names: str) -> list[int]:
    """Return lines of ``/proc/pid/status`` such as ``VmHWM``; nothing when the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    values = dict(line.split(":", 1) for line in lines)
    return [int(values[name].split()[0]) for name in names if name in values]


def kind_of_python(pid: int) -> str | None:
    """Return what a Python process of Spark's or pillarbox's is; None: something else.

    That is a ``worker`` of PySpark's, its ``daemon``, a ``home`` of pillarbox's, or the ``starter`` of homes.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        above = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return None

    def is_python(command: bytes) -> bool:  # Java's command has settings, with names of modules
        return b"python" in command.partition(b"\0")[0]

    for program, child, alone in (
        (b"pyspark.daemon", "worker", "daemon"),
        (b"pillarbox.daemon", "worker", "daemon"),
        (b"homes import starter", "home", "starter"),
    ):
        if program in command and is_python(command):
            return child if program in above and is_python(above) else alone
    return None


def is_python_worker(pid: int) -> bool:
    """Return whether tasks live in a process, or pass through it."""
    return kind_of_python(pid) in ("worker", "home")


class Measured:
    """What is done meanwhile, by this process and all below it; memory is looked at ten times a second.

    Attributes:
        seconds: of the wall clock.
        processor_s: of processors.
        peak_mib: the largest memory of Java, of all Python processes below this one, and of any one of these.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._kib = {"java": 0, "python": 0, "python_process": 0}

    def __enter__(self) -> Measured:
        self._thread.start()
        self._processor_s = cpu_seconds(os.getpid())
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.processor_s = cpu_seconds(os.getpid()) - self._processor_s
        self._ended.set()
        self._thread.join()
        self.peak_mib = {what: kib // 1024 for what, kib in self._kib.items()}

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            now = dict.fromkeys(self._kib, 0)
            for pid in descendants(os.getpid()):
                try:
                    # A command that Java is about to run is Java itself, in the same memory, under a name of its own.
                    program = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
                except OSError:
                    continue
                kib = sum(memory_kib(pid, "VmRSS"))
                if program.startswith("python"):
                    now["python"] += kib
                    now["python_process"] = max(now["python_process"], kib)
                elif program == "java":
                    now["java"] = max(now["java"], kib)
            self._kib = {what: max(kib, now[what]) for what, kib in self._kib.items()}


# -- a streaming query that gets its micro-batches one by one --


class SteppedQuery:
    """A streaming query over Parquet files: each directory that is moved in is one micro-batch.

    It is removed afterwards: a query that waits while another side is asked looks for files all the time, and the more
    there are, the more it takes from that side.
    """

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._directory = directory
        self._arrived = directory / "in"
        # Spark looks up the files of a pattern anew each time; a directory comes in one piece. The pattern must
        # match something from the start.
        (self._arrived / "nothing").mkdir(parents=True, exist_ok=True)
        self._number = 0
        self._busy = False
        self.source = spark.readStream.schema(schema).parquet(str(self._arrived / "*"))

    def start(self, result: DataFrame) -> None:
        """Start to consume ``result`` as cheaply as it can be."""
        checkpoint = str(self._directory / "checkpoint")
        self._query = result.writeStream.format("noop").option("checkpointLocation", checkpoint).start()

    def step(self, batch: str | Path) -> StreamingQueryProgress:
        """Run the micro-batch whose files are in the directory ``batch``, which is moved."""
        self._busy = True
        shutil.move(batch, self._arrived / Path(batch).name)
        self._query.processAllAvailable()
        self._busy = False
        number, self._number = self._number, self._number + 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for progress in self._query.recentProgress:
                if progress.batchId == number and progress.numInputRows:
                    shutil.rmtree(self._arrived / Path(batch).name)
                    return progress
            time.sleep(0.02)
        raise SystemExit(f"Spark reported no progress of micro-batch {number}")

    def keep_workers(self) -> None:
        """While nothing is asked, keep the Python workers alive, which Spark ends when none worked for a minute.

        The job for it goes to any of them, and so changes which of them is next: of no matter for workers without
        state of their own.
        """
        spark = self.source.sparkSession

        def run() -> None:
            while True:
                time.sleep(15)
                if not self._busy:
                    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id LONG").collect()

        threading.Thread(target=run, daemon=True).start()

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()


def run_to_the_end(result: Callable[[], DataFrame], checkpoint: Path) -> tuple[float, list[Row], StreamingQuery]:
    """Start a query that finds rows waiting, and let it run until none are left.

    Returns:
        the seconds from building it to its first rows at the sink; all rows; and the query, which has ended.
    """
    out: list[Row] = []
    seconds = 0.0

    def take(batch: DataFrame, _: int) -> None:
        nonlocal seconds
        found = batch.collect()
        if found and not out:
            seconds = time.perf_counter() - started
        out.extend(found)

    started = time.perf_counter()
    writer = result().writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return seconds, out, query


# For the sides of others: `local_session` lets workers begin with what pillarbox's need.
AS_SPARK_COMES = {"spark__python__daemon__module": "pyspark.daemon"}


def step_settings(directory: Path, memory: str) -> dict[str, str]:
    """Return the settings for a session with a stepped query, with ``__`` for dots."""
    return {
        "spark__driver__memory": memory,
        "spark__local__dir": str(directory / "local"),
        "spark__sql__streaming__noDataMicroBatches__enabled": "false",
        "spark__sql__streaming__pollingDelay": "250ms",  # a side that waits takes next to nothing from others
        # Of each side: what pillarbox sets for its own queries (on Spark 4.3).
        "spark__sql__streaming__stateStore__providerClass": STATE_STORE,
        "spark__sql__streaming__stateStore__rocksdb__changelogCheckpointing__enabled": "true",
        "spark__sql__streaming__stateStore__checkpointFormatVersion": "2",
        "spark__log__level": "ERROR",
    }


def task_reports(progress: StreamingQueryProgress, level: int = 1) -> list[TaskReport]:
    """Return pillarbox's metrics of the subtasks of a level in a micro-batch: 0 for sources, 1 for keyed ones."""
    from pillarbox import metrics  # sides without pillarbox do not load it

    return [task for task in metrics(progress) if task.level == level]


# -- one side of a comparison in a process of its own --


class Side:
    """A process that runs this very benchmark with other arguments, and answers one line to each that it is sent.

    Each side has its own Spark and its own Python workers, so that neither lives on what the other has warmed up;
    while one is asked the others wait.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, os.path.abspath(sys.argv[0]), *arguments]
        # Spark's workers tell much on their standard error; it is of interest when something fails.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line[len(_ANSWER) :])
                return answer
        status = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{self._errors.read()[-4000:]}\na side of the benchmark ended with {status}")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def questions() -> Iterable[dict[str, Any]]:
    """In a side's process: what it is asked."""
    for line in sys.stdin:
        yield json.loads(line)


def answer(**values: Any) -> None:
    """In a side's process: answer what was asked last."""
    print(_ANSWER + json.dumps(values), flush=True)
