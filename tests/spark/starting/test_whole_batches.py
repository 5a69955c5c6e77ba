from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

_KEYS = 8


class Ask(AsyncFunction):
    """Records each request in a file."""

    def __init__(self, notes: str) -> None:
        self.notes = notes

    async def async_invoke(self, value: Any) -> list[Any]:
        note = os.open(self.notes, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(note, f"{value[2]}\n".encode())
        os.close(note)
        return [value[:2]]


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value(), value.epoch


class Query:
    """A query that counts by key. Each epoch reads one file with all keys. The last operator makes requests."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.inputs, self.checkpoint, self.notes = home / "in", home / "checkpoint", home / "notes"
        self.inputs.mkdir()
        self.notes.touch()
        self.files = 0

    def put(self, epochs: int) -> None:
        for epoch in range(self.files, self.files + epochs):
            file = self.inputs / f"{epoch}.json"
            file.write_text("".join(json.dumps({"k": key, "epoch": epoch}) + "\n" for key in range(_KEYS)))
            os.utime(file, (1_700_000_000 + epoch,) * 2)
        self.files += epochs

    def run(self, function: Any) -> None:
        schema = "k LONG, epoch LONG"
        rows = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.inputs))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(2)
        counts = env.from_dataframe(rows).key_by(lambda row: row.k).process(Count()).uid("count")
        asked = AsyncDataStream.unordered_wait(counts, Ask(str(self.notes)), timeout="1 minute", capacity=4).uid("ask")
        answers = asked.to_dataframe("k LONG, n LONG")
        writer = answers.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        pillarbox.start(writer.foreachBatch(function)).awaitTermination()

    def requests(self) -> Counter[int]:
        return Counter(int(line) for line in self.notes.read_text().splitlines())


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def rows_of(batch: DataFrame) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in batch.collect())


def expected(epoch: int) -> list[tuple[int, int]]:
    return [(key, epoch + 1) for key in range(_KEYS)]


@pytest.mark.slow("a query and a restart, with five functions")
def test_a_function_may_read_a_part_of_its_batch(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    seen: dict[int, list[tuple[int, int]]] = {}

    def write(batch: DataFrame, number: int) -> Any:
        if number == 1:
            return [batch.isEmpty(), batch.isEmpty()]
        if number == 2:
            return batch.limit(1).collect()
        if number == 3:
            return batch.first() is None or batch.where("n < 0").isEmpty()
        if number == 4:
            return None
        if number == 5:
            batch.take(2)
            raise ValueError("the table is locked")
        seen[number] = rows_of(batch)
        return None

    with caplog.at_level(logging.WARNING, "pillarbox"):
        query.put(6)
        with pytest.raises(Exception, match="the table is locked"):
            query.run(write)
        warnings = [record.getMessage() for record in caplog.records if "foreachBatch" in record.getMessage()]
        [warning] = warnings
        assert "write() read only a part of batch 1," in warning and "env.for_each_batch()" in warning
        requests = query.requests()
        assert requests.pop(1) <= 3 * _KEYS
        assert requests.pop(5) <= _KEYS
        assert requests == {0: _KEYS, 2: _KEYS, 3: _KEYS, 4: _KEYS}

        caplog.clear()
        query.put(2)
        query.run(lambda batch, number: seen.update({number: rows_of(batch)}))
    assert seen == {epoch: expected(epoch) for epoch in (0, 5, 6, 7)}
    assert [query.requests()[epoch] for epoch in (6, 7)] == [_KEYS, _KEYS]
    assert not [record for record in caplog.records if "foreachBatch" in record.getMessage()]
