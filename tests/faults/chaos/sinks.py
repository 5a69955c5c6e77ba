"""Sinks that cause faults between their own commit and Spark's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tests.faults.programs.job import FileSink, Row

__all__ = ["SINKS", "ChaosSink", "LoggedFiles", "Sink"]

# Handling of a batch that the sink already has. ``overwriting`` writes it again. ``knowing`` returns without running
# the plan, like sinks that store batch numbers with their rows. ``parquet`` is Spark's own file sink, which skips
# batches in its log.
Sink = Literal["overwriting", "knowing", "parquet"]
SINKS: tuple[Sink, ...] = ("overwriting", "knowing", "parquet")


class ChaosSink(FileSink):
    """A sink with one file per batch, and a callback between its write and Spark's commit.

    Args:
        knowing: whether the sink skips batches that it has already written.
        after: called after the write of a batch.
    """

    def __init__(
        self,
        directory: Path,
        before: Callable[[DataFrame, int], None] | None = None,
        shift: int = 0,
        *,
        knowing: bool = False,
        after: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(directory, before, shift)
        self._knowing = knowing
        self._after = after

    def __call__(self, df: DataFrame, batch: int) -> None:
        if not self._knowing or batch + self.shift not in self.batches():
            super().__call__(df, batch)
        if self._after is not None:
            self._after()


class LoggedFiles:
    """The folder of Spark's file sink. Reads only the files that the sink's log lists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def batches(self) -> list[int]:
        return list(range(max(self._entries(), default=-1) + 1))

    def rows(self) -> list[Row]:
        entries = self._entries()
        compacted = max((batch for batch, path in entries.items() if path.suffix), default=-1)
        logged = [path for batch, path in sorted(entries.items()) if batch >= compacted]
        files = [file for path in logged for file in self._files(path)]
        tables = [pq.read_table(file).to_pylist() for file in files]
        return sorted((row["part"], row["key"], row["ts"], row["state"]) for rows in tables for row in rows)

    def _entries(self) -> dict[int, Path]:
        paths = sorted((self.directory / "_spark_metadata").glob("[0-9]*"))
        return {int(path.stem): path for path in paths if path.suffix in ("", ".compact")}

    @staticmethod
    def _files(entry: Path) -> list[str]:
        lines: list[dict[str, Any]] = [json.loads(line) for line in entry.read_text().splitlines()[1:]]
        return [unquote(urlsplit(line["path"]).path) for line in lines]
