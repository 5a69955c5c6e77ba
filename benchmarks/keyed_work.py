# SPDX-License-Identifier: Apache-2.0
"""What the keyed benchmarks share: rows, contenders, and how they are run beside each other and checked.

All read the same rows: keys drawn at random, event time that goes up evenly, in two parts of which each has half of the
keys, as a log with partitions has them. A round is a micro-batch of five minutes of event time.

Each contender has processes of its own. pillarbox stays from the beginning to the end; the peers come one after the
other, with a warm-up first, and after each of them pillarbox takes a turn: so it is measured all along the run, beside
each of them, and no more than two Sparks need memory. What counts is a contender's median over its rounds.

- On Spark (pillarbox, Spark's own APIs, identity) the cores are two, shuffle partitions two, the state store is
  RocksDB with changelog checkpoints, output goes into the sink ``noop``. A round's throughput is
  the micro-batch's ``numInputRows`` over its ``triggerExecution``. The warm-up is a small micro-batch and a full one.
  The two slow ones of Spark's APIs, those with pandas, get a fifth of the rows with a fifth of the keys: as many rows
  and timers for each key, and less state. Their warm-up is the small one alone: the first full one has fewer timers to
  fire than those after it. Both is to their favour. Spark ends Python workers that were idle for a minute, and while
  pillarbox waits that happens: the first micro-batch of each of its turns finds cold workers. It is shown as warm-up,
  two more count.
- PyFlink takes many times as long, so its round is a job over the first rows of a micro-batch, with the same rows per
  second of event time; it begins without state, ends with the maximum watermark, and makes no checkpoints, all of
  which is to its favour. Its time does not include the start of the job (see ``keyed_flink.py``). In process mode it
  has two subtasks. In thread mode all subtasks of a process share Python's one lock, so there are two processes side by
  side, each with one subtask and its own half of the keys: there is not even a shuffle between them.
- ``identity`` sends the rows through the same two hops, with functions in ``mapInArrow`` that hand on what they get:
  what PySpark costs with no work at all.
- ``bare`` is pillarbox's function in a Python loop, over rows made of the same files, with dictionaries for state and
  timers, in two processes with half of the keys each: what Python costs without any engine.

Every result is checked: each micro-batch must emit exactly what its semantics ask for. pillarbox fires timers in the
micro-batch that brings the watermark, Spark in the one after it. PyFlink's watermark goes on while rows come: see the
works' own words.
"""

from __future__ import annotations

import argparse
import heapq
import os
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.flink import DIRECTORY, FlinkSide, flink_python
from benchmarks.support import (
    AS_SPARK_COMES,
    ROOT,
    Side,
    SteppedQuery,
    answer,
    cpu_seconds,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
    step_settings,
    task_reports,
)
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy, local_session

MINUTE = 60_000
BATCH_SPAN = 5 * MINUTE
DELAY = 5_000
# How many run at a time.
SUBTASKS = 2
FOR_EVER = 2**62
WEIGHTS = (1_000_003, 7_919, 31, 101)
MODULUS = 2_147_483_647
TASK_METRICS = ("busy_ms", "state_ms", "back_pressured_ms", "idle_ms", "state_sync")
# A load before the start that is worth a word.
BUSY = 0.7

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contender:
    """Something that is measured: warm-up and rounds are micro-batches, or jobs of PyFlink.

    A slow one gets only a ``share`` of the rows, and of the keys.
    """

    title: str
    warm_up: int
    rounds: int
    kind: str = "spark"
    share: int = 1


PILLARBOX = Contender("pillarbox", warm_up=2, rounds=2, kind="pillarbox")
PEERS = {
    "rows": Contender("transformWithState", warm_up=2, rounds=2),
    "pandas": Contender("transformWithStateInPandas", warm_up=1, rounds=1, share=5),
    "apply": Contender("applyInPandasWithState", warm_up=1, rounds=1, share=5),
    "process": Contender("PyFlink, process mode", warm_up=1, rounds=2, kind="flink"),
    "thread": Contender("PyFlink, thread mode", warm_up=1, rounds=2, kind="flink"),
    "identity": Contender("(identity in mapInArrow)", warm_up=2, rounds=3, kind="limit"),
    "bare": Contender("(bare Python loop)", warm_up=2, rounds=3, kind="limit"),
    "few": Contender("(pillarbox, 2 subtasks)", warm_up=2, rounds=3, kind="self"),
}
# All but one are measured unless the command line says otherwise.
USUAL = [name for name in PEERS if name != "few"]
CONTENDERS = {"pillarbox": PILLARBOX, **PEERS}


# -- the work --


class Work(ABC):
    """The work to be done with the rows.

    Attributes:
        name: of the benchmark, and of the work in ``keyed_flink.py``.
        output: the columns of the outcome, the last of which is a number of rows.
        function: for pillarbox, and for the bare loop.
        queries: on a streaming DataFrame with ``key``, ``ts`` and the time with a watermark, for each of Spark's APIs.
    """

    name: str
    output: str
    function: Callable[[], Any]
    queries: Mapping[str, Callable[[DataFrame], DataFrame]]

    @abstractmethod
    def expected(self, batches: Iterator[tuple[Ints, Ints]], keys: int, *, late: bool) -> Iterator[list[Ints]]:
        """For each micro-batch give the columns that it must emit.

        Args:
            batches: their keys and timestamps.
            keys: how many there are.
            late: whether timers fire one micro-batch after the watermark, as Spark's do.
        """

    @abstractmethod
    def check_job(self, key: Ints, ts: Ints, found: list[Ints]) -> bool:
        """Return whether a job over all these rows may have emitted this, with a watermark that went on meanwhile."""

    def pillarbox_query(self, source: DataFrame, subtasks: int) -> DataFrame:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
        env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
        env.set_parallelism(SUBTASKS).set_max_parallelism(subtasks)
        stream = env.from_dataframe(source).assign_timestamps_and_watermarks(strategy)
        return stream.key_by("key").process(self.function()).to_dataframe(self.output)


def summary(columns: Sequence[Ints]) -> list[int]:
    """Return the number of rows, the sum of the last column, and a checksum."""
    return [len(columns[0]), int(columns[-1].sum()), int(np.sum(_weigh(columns)))]


def observed(df: DataFrame) -> DataFrame:
    """Have a query tell the same of what it emits."""
    columns = [F.col(name).cast("long") for name in df.columns]
    return df.observe("results", F.count(F.lit(1)).alias("n"), F.sum(columns[-1]), F.sum(_weigh(columns)))


def _weigh(columns: Sequence[Any]) -> Any:
    total: Any = 0
    for weight, column in zip(WEIGHTS, columns):
        total = column * weight + total
    return total % MODULUS


class Data:
    """The micro-batches, made when they are asked for."""

    def __init__(self, rows: int, warm_up_rows: int, keys: int) -> None:
        self.rows = rows
        self.warm_up_rows = warm_up_rows
        self.keys = keys

    def batch(self, number: int) -> tuple[Ints, Ints]:
        """Return keys and timestamps; the first one is small."""
        rows = self.rows if number else self.warm_up_rows
        key = np.random.default_rng([1, number]).integers(0, self.keys, rows)
        # Not from 0 on, which for Spark is the watermark before there is one.
        ts = (number + 1) * BATCH_SPAN + np.arange(rows) * BATCH_SPAN // rows
        # Both parts end at the same time, and so have the same watermark.
        key[-SUBTASKS:] = range(SUBTASKS)
        ts[-SUBTASKS:] = ts[-1]
        return key, ts

    def batches(self) -> Iterator[tuple[Ints, Ints]]:
        """Return one after the other."""
        number = 0
        while True:
            yield self.batch(number)
            number += 1

    def write(self, number: int, directory: Path) -> Path:
        """Write a micro-batch as Parquet, two files with half of the keys each."""
        place = directory / f"{number:03}"
        place.mkdir(parents=True)
        key, ts = self.batch(number)
        for part in range(SUBTASKS):
            mine = key % SUBTASKS == part
            pq.write_table(pa.table({"key": key[mine].astype(np.int32), "ts": ts[mine]}), place / f"{part}.parquet")
        return place

    def job(self, rows: int) -> tuple[Ints, Ints]:
        """Return the first rows of the first full micro-batch."""
        key, ts = self.batch(1)
        return key[:rows], ts[:rows]

    def write_job(self, rows: int, directory: Path) -> Path:
        """Write them as CSV, two directories with half of the keys each."""
        key, ts = self.job(rows)
        for part in range(SUBTASKS):
            (directory / str(part)).mkdir(parents=True)
            mine = key % SUBTASKS == part
            options = pa_csv.WriteOptions(include_header=False)
            pa_csv.write_csv(pa.table({"key": key[mine], "ts": ts[mine]}), directory / str(part) / "rows.csv", options)
        return directory


# -- on Spark, in a process of its own --


def serve(work: Work, contender: str, directory: Path, memory: str, subtasks: int) -> None:
    """Run a query over micro-batches that come when they are asked for.

    Args:
        subtasks: of pillarbox.
    """
    settings = step_settings(directory, memory)
    if contender not in ("pillarbox", "few"):
        settings |= AS_SPARK_COMES
    spark = local_session(SUBTASKS, **settings)
    query = SteppedQuery(spark, directory, "key INT, ts LONG")
    if contender in ("pillarbox", "few"):
        result = work.pillarbox_query(query.source, SUBTASKS if contender == "few" else subtasks)
    elif contender == "identity":
        result = query.source.mapInArrow(lambda batches: batches, "key INT, ts LONG")
        result = result.repartition(SUBTASKS, "key").mapInArrow(lambda batches: batches, "key INT, ts LONG")
    else:
        timed = query.source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", "5 seconds")
        result = work.queries[contender](timed)
    query.start(observed(result))
    for question in questions():
        before = cpu_seconds(os.getpid())
        progress = query.step(question["batch"])
        answer(
            rows=progress.numInputRows,
            ms=progress.durationMs["triggerExecution"],
            cpu=cpu_seconds(os.getpid()) - before,
            results=[value or 0 for value in progress.observedMetrics["results"]],
            tasks=[{name: getattr(task, name) for name in TASK_METRICS} for task in task_reports(progress)],
        )
    query.stop()
    spark.stop()


# -- the bare loop --

BareRow = namedtuple("BareRow", "key ts")


class BareState:
    """A value or a list for each key."""

    def __init__(self, loop: Bare) -> None:
        self._loop = loop
        self._values: dict[int, Any] = {}

    def value(self) -> Any:
        return self._values.get(self._loop.key)

    def update(self, value: Any) -> None:
        self._values[self._loop.key] = value

    def add(self, value: Any) -> None:
        values = self._values.get(self._loop.key)
        if values is None:
            self._values[self._loop.key] = [value]
        else:
            values.append(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.get(self._loop.key, ()))

    def clear(self) -> None:
        self._values.pop(self._loop.key, None)


class Bare:
    """The least that runs a keyed function; it is the function's context and timer service as well."""

    def __init__(self, function: Any) -> None:
        self.key = -1
        self._function = function
        self._timers: dict[int, set[int]] = {}
        self._times: list[int] = []
        function.open(self)

    def get_state(self, _: Any) -> BareState:
        return BareState(self)

    get_list_state = get_state

    def get_current_key(self) -> int:
        return self.key

    def timer_service(self) -> Bare:
        return self

    def register_event_time_timer(self, timestamp: int) -> None:
        keys = self._timers.get(timestamp)
        if keys is None:
            keys = self._timers[timestamp] = set()
            heapq.heappush(self._times, timestamp)
        keys.add(self.key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers[timestamp].discard(self.key)

    def run(self, rows: Sequence[Any], watermark: int) -> list[Any]:
        """Process a micro-batch."""
        emitted: list[Any] = []
        process, on_timer = self._function.process_element, self._function.on_timer
        for row in rows:
            self.key = row.key
            given = process(row, self)
            if given is not None:
                emitted.extend(given)
        while self._times and self._times[0] <= watermark:
            timestamp = heapq.heappop(self._times)
            for key in self._timers.pop(timestamp):
                self.key = key
                emitted.extend(on_timer(timestamp, self))
        return emitted


_bare: Bare | None = None


def _run_bare(function: Callable[[], Any], batch: str, part: int) -> tuple[float, list[int]]:
    global _bare  # noqa: PLW0603
    _bare = _bare or Bare(function())
    watermark = int(max(pq.read_table(path)["ts"][-1].as_py() for path in Path(batch).iterdir())) - DELAY - 1
    start = time.perf_counter()
    table = pq.read_table(Path(batch) / f"{part}.parquet")
    rows = list(map(BareRow, table["key"].to_numpy().tolist(), table["ts"].to_numpy().tolist()))
    emitted = _bare.run(rows, watermark)
    seconds = time.perf_counter() - start
    return seconds, summary(list(np.array(emitted, np.int64).T)) if emitted else [0, 0, 0]


def serve_bare(work: Work) -> None:
    """Run the bare loop over micro-batches that come when they are asked for."""
    pools = [ProcessPoolExecutor(1) for _ in range(SUBTASKS)]
    for question in questions():
        before = cpu_seconds(os.getpid())
        futures = [pool.submit(_run_bare, work.function, question["batch"], i) for i, pool in enumerate(pools)]
        parts = [future.result() for future in futures]
        answer(
            ms=1000 * max(seconds for seconds, _ in parts),
            cpu=cpu_seconds(os.getpid()) - before,
            results=[sum(values) for values in zip(*(results for _, results in parts))],
            tasks=[],
        )
    for pool in pools:
        pool.shutdown()


# -- the comparison --


@dataclass
class Round:
    """The measurements."""

    rows: int
    ms: float
    cpu: float | None

    @property
    def rate(self) -> float:
        """Rows per second."""
        return 1000 * self.rows / self.ms


class Runner(ABC):
    """A contender's processes, and what they have done."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        self.comparison = comparison
        self.name = name
        self.contender = CONTENDERS[name]
        self.directory = comparison.directory / name
        self.directory.mkdir()
        self.number = 0
        self.counted: list[Round] = []
        self.sides: list[Side] = []

    @abstractmethod
    def measure(self) -> tuple[Round, str, str]:
        """Run the next micro-batch or job; give also a word on it, and what is wrong with it."""

    def run(self, *, counts: bool) -> None:
        done, word, wrong = self.measure()
        if wrong:
            self.comparison.wrong.append(f"{self.contender.title}, round {self.number}: {wrong}")
        if counts:
            self.counted.append(done)
        self.number += 1
        label = str(len(self.counted)) if counts else "warm-up"
        print(
            f"  {self.contender.title:28}{label:>8}{done.rows:12,} rows{done.ms / 1000:8.1f} s"
            f"{done.rate:11,.0f} /s  {word} {'WRONG' if wrong else 'as expected'}",
            flush=True,
        )

    def turn(self) -> None:
        """Do all that a peer does: warm-up and rounds."""
        for _ in range(self.contender.warm_up):
            self.run(counts=False)
        for _ in range(self.comparison.arguments.rounds or self.contender.rounds):
            self.run(counts=True)

    def close(self) -> None:
        for side in self.sides:
            side.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class BatchRunner(Runner):
    """One that gets micro-batches."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(comparison, name)
        memory = comparison.arguments.memory
        subtasks = str(comparison.arguments.subtasks)
        options = ("--directory", str(self.directory), "--memory", memory, "--subtasks", subtasks)
        self.sides = [Side("--side", name, *options)]
        data, share, late = comparison.data, self.contender.share, self.contender.kind == "spark"
        self.data = data = Data(data.rows // share, data.warm_up_rows // share, data.keys // share)
        self.expected: Iterator[Any] = data.batches()
        if name != "identity":
            self.expected = comparison.work.expected(self.expected, data.keys, late=late)
        self.tasks: list[dict[str, Any]] = []

    def measure(self) -> tuple[Round, str, str]:
        batch = self.data.write(self.number, self.directory / "staging")
        rows = len(self.data.batch(self.number)[0])
        said = self.sides[0].ask(batch=str(batch))
        expected = summary(next(self.expected))
        wrong = "" if said["results"] == expected else f"{said['results']}, not {expected}"
        if said.get("rows", rows) != rows:
            wrong = f"{said['rows']:,} rows, not {rows:,}"
        self.tasks = said["tasks"]
        word = ", ".join([f"{said['results'][0]:,} emitted", *sorted({task["state_sync"] for task in said["tasks"]})])
        return Round(rows, said["ms"], said["cpu"]), word, wrong


class FlinkRunner(Runner):
    """One of PyFlink's modes."""

    def __init__(self, comparison: Comparison, name: str, python: Path) -> None:
        super().__init__(comparison, name)
        bundle = str(comparison.arguments.flink_bundle)
        single = name == "thread"
        for _ in range(SUBTASKS if single else 1):
            parallelism = str(1 if single else SUBTASKS)
            options = ("--mode", name, "--parallelism", parallelism, "--bundle", bundle)
            self.sides.append(FlinkSide(python, "keyed_flink.py", *options))

    def measure(self) -> tuple[Round, str, str]:
        arguments, data = self.comparison.arguments, self.comparison.data
        rows = arguments.flink_rows if self.number else min(arguments.flink_rows, arguments.flink_warm_up_rows)
        place = data.write_job(rows, self.directory / f"{self.number}-in")
        sources = [place] if len(self.sides) == 1 else [place / str(part) for part in range(SUBTASKS)]
        target = self.directory / f"{self.number}-out"
        with ThreadPoolExecutor(len(self.sides)) as threads:
            work = self.comparison.work.name
            asked = [
                threads.submit(side.ask, work=work, source=str(source), target=str(target / str(index)))
                for index, (side, source) in enumerate(zip(self.sides, sources))
            ]
            said = [each.result() for each in asked]
        for each in said:
            if "error" in each:
                raise SystemExit(each["error"])
        found = self._read(target)
        fits = sum(each["rows"] for each in said) == rows
        fits = fits and self.comparison.work.check_job(*data.job(rows), found)
        wrong = "" if fits else f"{len(found[0]):,} results, which are not what they should be"
        done = Round(rows, 1000 * max(each["seconds"] for each in said), None)
        return done, f"{len(found[0]):,} emitted", wrong

    def _read(self, target: Path) -> list[Ints]:
        lines: list[str] = []
        for path in sorted(target.rglob("*")):
            if path.is_file():
                lines += path.read_text().splitlines()
        rows = [line.partition("[")[2].rstrip("]").split(",") for line in lines]
        return list(np.array(rows, np.int64).T) if rows else [np.empty(0, np.int64)] * 2


class Comparison:
    """All contenders, one after the other."""

    def __init__(self, work: Work, arguments: argparse.Namespace, directory: Path) -> None:
        self.work = work
        self.arguments = arguments
        self.directory = directory
        self.data = Data(arguments.rows, arguments.warm_up_rows, arguments.keys)
        self.wrong: list[str] = []
        self.done: dict[str, list[Round]] = {}

    def run(self) -> None:
        """Measure."""
        python = None
        if {"process", "thread"} & set(self.arguments.peers):
            python = flink_python(self.arguments.flink_directory)
        ours = BatchRunner(self, "pillarbox")
        self.done["pillarbox"] = ours.counted
        for _ in range(PILLARBOX.warm_up):
            ours.run(counts=False)
        for name in self.arguments.peers:
            self.peer(name, python)
            for index in range(1 + PILLARBOX.rounds):
                ours.run(counts=index > 0)
        if not self.arguments.peers:
            ours.turn()
        self.tasks = ours.tasks
        ours.close()

    def peer(self, name: str, python: Path | None) -> None:
        """Let a peer do its rounds; PyFlink is left out where it does not run."""
        flink = PEERS[name].kind == "flink"
        if flink and python is None:
            return
        runner = FlinkRunner(self, name, python) if flink and python else BatchRunner(self, name)
        try:
            runner.turn()
            self.done[name] = runner.counted
        except SystemExit as ended:
            if not flink:
                raise
            print(f"{ended}\n{PEERS[name].title} is left out, as it does not run")
        finally:
            runner.close()

    def report(self, load: float) -> None:
        """Print the figures."""
        medians = {name: statistics.median(each.rate for each in done) for name, done in self.done.items()}
        cpu = {
            name: statistics.median(each.cpu / each.rows * 1e6 for each in done if each.cpu is not None)
            for name, done in self.done.items()
            if all(each.cpu is not None for each in done)
        }
        ours = medians["pillarbox"]
        print()
        print_table(
            ["rows per second", "median", "lowest", "highest", "CPU s per 1M rows", "rounds", "pillarbox over it"],
            [
                [
                    CONTENDERS[name].title,
                    *spread([each.rate for each in done]),
                    f"{cpu[name]:.1f}" if name in cpu else "-",
                    f"{len(done)} of {done[0].rows:,}",
                    f"{ours / medians[name]:.2f}",
                ]
                for name, done in self.done.items()
            ],
        )
        subtasks = ", ".join(
            f"{name} {'/'.join(f'{task[name]:,}' for task in self.tasks)}"
            for name in TASK_METRICS
            if name != "state_sync"
        )
        print(f"pillarbox, last micro-batch, by subtask: {subtasks}")
        fastest = {
            kind: max(
                (name for name in medians if CONTENDERS[name].kind == kind), key=medians.__getitem__, default=None
            )
            for kind in ("spark", "flink")
        }

        def over(name: str | None) -> float | None:
            return round(ours / medians[name], 3) if name in medians else None

        for line in self.wrong:
            print(f"WRONG RESULTS: {line}")
        finish(
            self.work.name,
            over(fastest["spark"]) or 0,
            ratio_flink=over(fastest["flink"]),
            of_identity=over("identity"),
            of_bare_loop=over("bare"),
            subtasks=self.arguments.subtasks,
            of_few_subtasks=over("few"),
            bare_loop=round(medians["bare"]) if "bare" in medians else None,
            fastest_spark=PEERS[fastest["spark"]].title if fastest["spark"] else None,
            fastest_flink=PEERS[fastest["flink"]].title if fastest["flink"] else None,
            results_agree=not self.wrong,
            rows_per_s={name: round(value) for name, value in medians.items()},
            cpu_s_per_1m_rows={name: round(value, 2) for name, value in cpu.items()},
            rounds={name: [round(each.rate) for each in done] for name, done in self.done.items()},
            rows=self.arguments.rows,
            keys=self.arguments.keys,
            flink_rows=self.arguments.flink_rows,
            load_before=round(load, 1),
            spark=spark_version(),
        )


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = set(names) - set(PEERS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(PEERS)}")
    return [name for name in PEERS if name in names]


def main(work: Work, doc: str | None) -> None:
    """Run a keyed benchmark, or one of its sides."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a micro-batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--warm-up-rows", type=int, default=100_000, help="rows of the very first micro-batch")
    parser.add_argument(
        "--peers", type=_peers, default=USUAL, help=f"some of {','.join(PEERS)}; {','.join(USUAL)} by default"
    )
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each peer that count, instead of its own")
    parser.add_argument("--flink-rows", type=int, default=200_000, help="rows of a job of PyFlink")
    parser.add_argument("--flink-warm-up-rows", type=int, default=20_000, help="of its first one")
    parser.add_argument("--flink-bundle", type=int, default=10_000, help="elements in a bundle of PyFlink")
    parser.add_argument("--flink-directory", type=Path, default=DIRECTORY, help="its environment, made when missing")
    parser.add_argument("--subtasks", type=int, default=2 * SUBTASKS, help="of pillarbox, in two partitions")
    parser.add_argument("--memory", default="3g", help="of each Spark")
    parser.add_argument("--side", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Spark's workers find this module where the driver does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    arguments.flink_rows = min(arguments.flink_rows, arguments.rows)
    if arguments.side == "bare":
        serve_bare(work)
        return
    if arguments.side:
        serve(work, arguments.side, arguments.directory, arguments.memory, arguments.subtasks)
        return
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"NOTE: the machine is busy with other things (load {load:.1f})")
    with tempfile.TemporaryDirectory(prefix=f"bench-{work.name}-") as directory:
        comparison = Comparison(work, arguments, Path(directory))
        comparison.run()
        comparison.report(load)
    if comparison.wrong:
        sys.exit(1)
