# SPDX-License-Identifier: Apache-2.0
"""Rows: drawn by seeds, written as files, and what must come of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Ints = npt.NDArray[np.int64]
Columns = Sequence[Ints]

MINUTE = 60_000
HOUR = 60 * MINUTE
# A full hour. Not near 0, which for Spark is the watermark before there is one.
EPOCH = 1_767_225_600_000
FOR_EVER = 2**62
# How many run at a time.
SUBTASKS = 2
_WEIGHTS = (1_000_003, 7_919, 31, 101)
_MODULUS = 2_147_483_647


# -- checksums --


def summary(columns: Columns) -> list[int]:
    """Return the number of rows, the sum of the last column, and a checksum."""
    if not len(columns) or not len(columns[0]):
        return [0, 0, 0]
    return [len(columns[0]), int(columns[-1].sum()), int(np.sum(_weigh(columns)))]


def checksums(names: Sequence[str]) -> list[Any]:
    """Return what a query has to observe to tell the same of columns."""
    from pyspark.sql import functions as F

    columns = [F.col(name).cast("long") for name in names]
    return [F.count(F.lit(1)).alias("n"), F.sum(columns[-1]), F.sum(_weigh(columns))]


def observed(df: DataFrame) -> DataFrame:
    """Have a query tell the same of what it emits."""
    return df.observe("results", *checksums(df.columns))


def _weigh(columns: Sequence[Any]) -> Any:
    total: Any = 0
    for weight, column in zip(_WEIGHTS, columns):
        total = column * weight + total
    total = total % _MODULUS
    # Squared, as sums of sums would be the same where values of a column have changed places.
    return total * total % _MODULUS


def read_rows(targets: Iterable[Path]) -> list[Ints]:
    """Return the columns that jobs wrote: rows as text, as they are or as PyFlink shows them."""
    lines: list[str] = []
    for target in targets:
        for path in [target] if target.is_file() else target.rglob("*"):
            if path.is_file():
                lines += path.read_text().splitlines()
    rows = [line.rpartition("[")[2].rstrip("]").split(",") for line in lines]
    return list(np.array(rows, np.int64).T) if rows else []


# -- files --


def write_halves(path: Path, **columns: npt.NDArray[Any]) -> Path:
    """Write columns as Parquet, every other row into the other of two files; return their directory."""
    path.mkdir(parents=True, exist_ok=True)
    for part in range(SUBTASKS):
        halves = {name: column[part::SUBTASKS] for name, column in columns.items()}
        pq.write_table(pa.table(halves), path / f"{part}.parquet")
    return path


def _as_schema(name: str, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column as the schemas of all cases have it: times and amounts are LONG, keys and sides INT."""
    return column.astype(np.int32) if name in ("key", "side") else column


def draw(
    seed: Sequence[int], rows: int, keys: int, begin: int, span: int, *, disorder: int = 0, grid: int = 1
) -> tuple[Ints, Ints, np.random.Generator]:
    """Return keys at random, and times that go up evenly; and the generator, for more columns.

    Args:
        span: of all rows, in milliseconds.
        disorder: by how much, in milliseconds, a row may come too late.
        grid: times are multiples of it.
    """
    random = np.random.default_rng(seed)
    key = random.integers(0, keys, rows)
    ts = begin + np.arange(rows) * span // rows
    if disorder:
        ts -= random.integers(0, disorder, rows)
    # Both halves end at the same time, and so have the same watermark.
    key[-SUBTASKS:] = range(SUBTASKS)
    ts[-SUBTASKS:] = begin + span - 1
    return key, ts // grid * grid, random


class MicroBatches(ABC):
    """The micro-batches of a work, drawn from seeds, and what must come of each.

    Attributes:
        small_ones: how many at the beginning have fewer rows.
        streams: of how many streams a micro-batch has rows, each with ``rows`` of them.

    Args:
        rows: of a full micro-batch, of each stream.
        small: the same of the first ones.
        directory: for their files.
    """

    small_ones = 2
    streams = 1

    def __init__(self, rows: int, small: int, keys: int, directory: Path) -> None:
        self.rows = max(rows, 10)
        self.small = min(max(small, 10), self.rows)
        self.keys = max(keys, SUBTASKS)
        self._directory = directory
        self._known: dict[bool, list[list[int]]] = {False: [], True: []}
        self._running = {late: self.results(late=late) for late in (False, True)}

    @abstractmethod
    def columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        """Return the rows of a micro-batch: keys, times and more."""

    @abstractmethod
    def results(self, *, late: bool) -> Iterator[Columns]:
        """For each micro-batch return the columns that it must emit.

        Args:
            late: whether timers and windows come one micro-batch after the watermark, as Spark's do.
        """

    @abstractmethod
    def of_job(self, number: int) -> Columns:
        """Return what must come of a job over a micro-batch's rows by themselves."""

    def rows_of(self, number: int) -> int:
        """Return how many rows a stream has in a micro-batch."""
        return self.small if number < self.small_ones else self.rows

    def length(self, number: int) -> int:
        """Return how many rows a micro-batch has."""
        return self.streams * self.rows_of(number)

    def job_length(self, number: int) -> int:
        """Return how many rows a job over a micro-batch has."""
        return self.length(number)

    def job_columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        """Return the rows of a job."""
        return self.columns(number, stream)

    def expected(self, number: int, kind: str) -> list[int]:
        """Return the summary of what a contender of a kind must emit in a micro-batch."""
        if kind == "limit":
            return summary(list(self.columns(number).values()))
        late = kind in ("spark", "own")  # on pillarbox, Spark's programs keep Spark's time
        summaries = self._known[late]
        while len(summaries) <= number:
            summaries.append(summary(next(self._running[late])))
        return summaries[number]

    def wrong_job(self, number: int, columns: list[Ints]) -> str:
        """Return how the results of a job differ from what they must be; empty: they do not."""
        results, expected = summary(columns), summary(self.of_job(number))
        return "" if results == expected else f"{results}, not {expected}"

    def path(self, number: int, form: str) -> Path:
        """Return the directory with a micro-batch's files, which are written when they are missing.

        Args:
            form: ``parquet``: a file for each half of the keys; ``csv``, for jobs: a directory for each half, and
                ``whole``; ``csv-whole``: one file, with names. Of two streams each has a directory of its own.
        """
        path = self._directory / form / f"{number:03}"
        if not path.exists():
            for stream in range(self.streams):
                columns = self.job_columns(number, stream) if form == "csv" else self.columns(number, stream)
                within = path / str(stream) if self.streams > 1 and form == "csv" else path
                name = f"{stream}-" if self.streams > 1 else ""
                self._write(within, name, form, columns)
        return path

    def _write(self, path: Path, name: str, form: str, columns: Mapping[str, Ints]) -> None:
        selected = {name: column for name, column in columns.items() if name != "side" or form == "parquet"}
        whole = pa.table({name: _as_schema(name, column) for name, column in selected.items()})
        halves = {str(part): whole.filter(pa.array(columns["key"] % SUBTASKS == part)) for part in range(SUBTASKS)}
        path.mkdir(parents=True, exist_ok=True)
        if form == "csv-whole":
            pa_csv.write_csv(whole, path / "rows.csv", pa_csv.WriteOptions(quoting_style="none"))
        elif form == "csv":
            bare = pa_csv.WriteOptions(include_header=False)
            for part, table in {**halves, "whole": whole}.items():
                (path / part).mkdir()
                pa_csv.write_csv(table, path / part / "rows.csv", bare)
        else:
            for part, table in halves.items():
                pq.write_table(table, path / f"{name}{part}.parquet")
