from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles, TaskContext
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import KeyedProcessFunction, ProgramError, StreamExecutionEnvironment, ValueStateDescriptor
from tests.spark.streams import Rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]


class Count(KeyedProcessFunction):
    """Counts a key's records in an attribute and in state. Emits its process's pid. ``close`` writes a file."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.field: Counter[Any] = Counter()

    def note(self, what: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))
        self.note("open")

    def process_element(self, row, ctx):
        self.field[row.key] += 1
        self.seen.update((self.seen.value() or 0) + 1)
        yield row.key, self.field[row.key], self.seen.value(), os.getpid()

    def close(self):
        self.note("close")


class Look(KeyedProcessFunction):
    def __init__(self, table: Any, total: Any) -> None:
        self.table = table
        self.total = total

    def process_element(self, row, ctx) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        self.total.add(row.key)
        yield (
            f"{self.table.value[row.key % 2]} {context.partitionId()} {context.attemptNumber()}"
            f" {context.getLocalProperty('sql.streaming.queryId')}",
            f"{os.environ['SPARK_LOCAL_DIRS']} {os.getcwd()}",
            f"{Path(SparkFiles.get('shipped.txt')).read_text()} {threading.current_thread().name}",
        )


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def numbers(spark: SparkSession, folder: Path, epochs: int, rows: int = 40) -> Any:
    for _ in range(epochs):
        spark.range(rows).selectExpr("id AS key").coalesce(1).write.mode("append").parquet(str(folder / "in"))
    read = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1)
    return read.parquet(str(folder / "in"))


def keyed(rows: Any, function: KeyedProcessFunction, columns: str, parallelism: int = 3) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(rows.sparkSession)
    env.set_parallelism(parallelism).set_max_parallelism(2 * parallelism)
    return env.from_dataframe(rows).key_by("key").process(function).uid("function").to_dataframe(columns)


def noted(notes: Path, what: str) -> list[str]:
    return sorted(line.split()[1] for line in notes.read_text().splitlines() if line.split()[0] == what)


COUNTS = "key LONG, field LONG, state LONG, pid LONG"


def test_a_field_counts_what_state_counts(spark: SparkSession, tmp_path: Path, notes: Path) -> None:
    out = Rows()

    def in_a_group(batch: Any, number: int) -> None:
        spark.sparkContext.setJobGroup(f"mine {number}", "a group of the user's")
        out(batch, number)

    counted = keyed(numbers(spark, tmp_path, 3), Count(notes), COUNTS)
    writer = counted.writeStream.foreachBatch(in_a_group).option("checkpointLocation", str(tmp_path / "checkpoint"))
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert sorted((key, field) for key, field, _, _ in out) == sorted(
        (key, n) for key in range(40) for n in range(1, 4)
    )
    assert all(field == state for _, field, state, _ in out)
    processes = {pid for _, _, _, pid in out}
    assert len(processes) == 3 and len(noted(notes, "open")) == 6, "a process for each partition, open() once a subtask"
    assert noted(notes, "close") == noted(notes, "open"), "they are closed when the query has ended"
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


def test_functions_in_a_home_see_the_environment_of_a_worker(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shipped.txt").write_text("shipped")
    spark.sparkContext.addFile(str(tmp_path / "shipped.txt"))
    table, total = spark.sparkContext.broadcast(["even", "odd"]), spark.sparkContext.accumulator(0)
    out = Rows()
    looked = keyed(numbers(spark, tmp_path, 2), Look(table, total), "context STRING, place STRING, files STRING")
    writer = looked.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = pillarbox.start(writer.trigger(availableNow=True))
    query.awaitTermination()

    def of_worker(batches):
        for _ in batches:
            pass
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"place": [f"{os.environ['SPARK_LOCAL_DIRS']} {os.getcwd()}"]})

    (index,) = spark.range(1).coalesce(1).mapInArrow(of_worker, "place STRING").collect()
    assert {row[1] for row in out} == {index[0]}
    assert {row[0] for row in out} <= {f"{word} {part} 0 {query.id}" for word in ("even", "odd") for part in range(3)}
    assert {row[2] for row in out} == {"shipped MainThread"}
    assert total.value == 2 * sum(range(40)), "also in later epochs, in which nothing is unpickled"


@pytest.mark.parametrize("mode", [pytest.param("spawn", marks=pytest.mark.long("homes/test_homes.py spawns")), "off"])
def test_the_other_modes_give_the_same_results(spark: SparkSession, tmp_path: Path, notes: Path, mode: str) -> None:
    out, session = Rows(), spark.newSession()
    session.conf.set("spark.pillarbox.homes", mode)
    counted = keyed(numbers(session, tmp_path, 2), Count(notes), COUNTS)
    writer = counted.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "checkpoint"))
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert sorted((key, n) for key, _, n, _ in out) == sorted((key, n) for key in range(40) for n in range(1, 3))


class Daemons(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield row[1], os.getppid()


def test_one_daemon_forks_the_workers_of_sources_and_of_state(spark: SparkSession, tmp_path: Path) -> None:
    out, session = Rows(), spark.newSession()
    session.conf.set("spark.pillarbox.homes", "off")
    env = StreamExecutionEnvironment.get_execution_environment(session)
    records = env.from_dataframe(numbers(session, tmp_path, 1)).map(lambda row: (row.key, os.getppid()))
    daemons = records.key_by(lambda record: record[0]).process(Daemons()).to_dataframe("source LONG, state LONG")
    writer = daemons.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "checkpoint"))
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert len({pid for row in out for pid in row}) == 1


def test_a_program_that_a_query_uses_twice_is_refused(spark: SparkSession, tmp_path: Path, notes: Path) -> None:
    counted = keyed(numbers(spark, tmp_path, 1), Count(notes), COUNTS)
    twice = counted.where("key < 3").unionAll(counted.where("key > 5")).writeStream.format("noop")
    for start in (pillarbox.start, lambda writer: writer.start()):
        with pytest.raises(ProgramError, match=r"uses the result of one to_dataframe.. more than once"):
            start(twice.option("checkpointLocation", str(tmp_path / "checkpoint")))


def test_a_setting_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, notes: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.pillarbox.homes", "perhaps")
    counted = keyed(numbers(session, tmp_path, 1), Count(notes), COUNTS)
    with pytest.raises(pillarbox.ConfigurationError, match=r"spark\.pillarbox\.homes must be 'fork', 'spawn' or 'off'"):
        pillarbox.start(counted.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")))


class Ask(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield row.key


def test_a_request_in_flight_is_sent_once(spark: SparkSession, tmp_path: Path, notes: Path) -> None:
    answering = tmp_path / "answering"

    def ask(key: int) -> int:
        with notes.open("a") as file:
            file.write(f"asked {key}\n")
        while not answering.exists():
            time.sleep(0.05)
        return -key

    rows = numbers(spark, tmp_path, 4, rows=15).selectExpr("key", "rand() AS r")
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(4)
    asked = env.from_dataframe(rows).key_by("key").process(Ask()).uid("first")
    answered = asked.map_async(ask, capacity=100, on_barrier="carry").uid("ask")
    out = Rows()

    def take(batch: Any, number: int) -> None:
        out(batch, number)
        if number == 3:
            answering.touch()

    writer = answered.map(lambda value: (value,)).to_dataframe("value LONG").writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert sorted(value for (value,) in out) == sorted(-key for key in range(15) for _ in range(4))
    assert Counter(noted(notes, "asked")) == Counter({str(key): 4 for key in range(15)})
