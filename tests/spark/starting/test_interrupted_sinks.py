"""With each kind of sink, a query that ended between the sink's commit and Spark's commit can be restarted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import CheckpointMismatchError, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from pillarbox._runtime.spark.session.session_settings import session_settings
from pillarbox._runtime.spark.session.spark_names import STATE_FORMAT

_LOG = "spark.sql.streaming.fileSink.log."
_ENTRY = pytest.mark.long("the next has an entry, too")


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


class Query:
    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.checkpoint = home / "checkpoint"
        self.inputs = home / "in"
        self.output = str(home / "out")
        self.inputs.mkdir()

    def writer(self) -> Any:
        rows = self.spark.readStream.schema("k STRING").option("maxFilesPerTrigger", 1).json(str(self.inputs))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(2)
        counts = env.from_dataframe(rows).key_by("k").process(Count()).uid("count").to_dataframe("k STRING, n LONG")
        return counts.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)

    def put(self, *epochs: str) -> None:
        for keys in epochs:
            number = len(list(self.inputs.iterdir()))
            file = self.inputs / f"{number}.json"
            file.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))

    def run(self, writer: Any) -> None:
        pillarbox.start(writer).awaitTermination()

    def forget_last_commit(self) -> int:
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        return last

    def format(self) -> str:
        newest = max((path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()), key=str)
        return newest.read_text().splitlines()[0]


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


EXPECTED = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]


def rows_in(query: Query) -> list[tuple[str, int]]:
    return sorted((row.k, row.n) for row in query.spark.read.parquet(query.output).collect())


@pytest.mark.parametrize("epochs", [pytest.param(2, marks=_ENTRY), 3], ids=["entry", "compact"])
def test_a_file_sink_that_has_the_epoch_already(query: Query, epochs: int) -> None:
    def writer() -> Any:
        return query.writer().format("parquet").option("path", query.output).partitionBy("k")

    keys = ["ab", "a", "b"][:epochs]
    with session_settings(query.spark, {_LOG + "compactInterval": "3"}):
        query.put(*keys)
        query.run(writer())
        last = query.forget_last_commit()
        newest = Path(query.output, "_spark_metadata", f"{last}.compact" if epochs == 3 else str(last))
        assert newest.exists()
        query.put("ab" if epochs == 2 else "a")
        query.run(writer())
    assert query.format() == "v1"
    assert rows_in(query) == EXPECTED


def test_state_files_have_format_1_whatever_the_session_says(query: Query) -> None:
    """With format 2, Spark may commit one attempt's state together with another attempt's output."""
    query.put("ab")
    with session_settings(query.spark, {STATE_FORMAT: "2"}):
        query.run(query.writer().format("noop"))
    assert query.format() == "v1"
    [commit] = [path for path in (query.checkpoint / "commits").iterdir() if path.name.isdigit()]
    commit.write_text(commit.read_text().replace("v1", "v2", 1))
    (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointMismatchError, match=r"state files of format 2, .* env\.from_savepoint\(\)"):
        query.run(query.writer().format("noop"))


@pytest.mark.parametrize(
    "reads",
    [pytest.param(True, marks=pytest.mark.long("it reads more than the other")), False],
    ids=["skips the writing", "returns early"],
)
def test_a_function_that_knows_its_batches(query: Query, reads: bool) -> None:
    batches: dict[int, list[tuple[str, int]]] = {}

    def write(batch: DataFrame, number: int) -> None:
        if number in batches and not reads:
            return
        batch.persist()
        rows = [(row.k, row.n) for row in batch.collect()]
        batch.unpersist()
        batches.setdefault(number, rows)

    query.put("ab", "a")
    query.run(query.writer().foreachBatch(write))
    query.forget_last_commit()
    query.put("ab")
    query.run(query.writer().foreachBatch(write))
    assert sorted(row for rows in batches.values() for row in rows) == EXPECTED


@pytest.mark.long("the test before reads an interrupted batch")
def test_an_interrupted_batch_is_computed_once_however_often_it_is_read(query: Query) -> None:
    seen: list[list[Any]] = []

    def write(batch: DataFrame, number: int) -> None:
        seen.append(sorted(batch.selectExpr("mark").collect()))
        seen.append(sorted(batch.selectExpr("mark").collect()))

    def writer() -> Any:
        rows = query.spark.readStream.schema("k STRING").option("maxFilesPerTrigger", 1).json(str(query.inputs))
        env = StreamExecutionEnvironment.get_execution_environment(query.spark).set_parallelism(2)
        counts = env.from_dataframe(rows).key_by("k").process(Count()).uid("count").to_dataframe("k STRING, n LONG")
        marked = counts.selectExpr("uuid() AS mark", "k", "n")
        writer = marked.writeStream.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True)
        return writer.foreachBatch(write)

    query.put("ab")
    query.run(writer())
    query.forget_last_commit()
    seen.clear()
    query.run(writer())
    assert len(seen) == 2 and seen[0] == seen[1] != []
