"""Streams of files, and functions that run queries to their end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame


def stream_of(spark, df, folder: Path, files: int):
    df.repartitionByRange(files, "at").sortWithinPartitions("at").write.parquet(str(folder))
    for number, path in enumerate(sorted(folder.glob("part-*"))):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest file first
    return spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


class Rows:
    """A sink that collects the rows of micro-batches. A repeated micro-batch replaces its earlier rows."""

    def __init__(self) -> None:
        self._batches: dict[int, list[tuple[Any, ...]]] = {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        self._batches[number] = [tuple(row) for row in batch.collect()]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # The current rows: the query may be running.
        return iter([row for _, rows in sorted(self._batches.items()) for row in rows])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of(self, number: int) -> list[tuple[Any, ...]]:
        return self._batches[number]


def run(df, checkpoint: Path, batches: int | None = None):
    rows: list[tuple[Any, ...]] = []
    seen: list[int] = []

    def take(batch, number):
        if len(seen) == batches:
            raise RuntimeError("enough")
        seen.append(number)
        rows.extend(map(tuple, batch.collect()))

    writer = df.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if batches is None:
        query.awaitTermination()
    else:
        with pytest.raises(Exception, match="enough"):
            query.awaitTermination()
    return rows
