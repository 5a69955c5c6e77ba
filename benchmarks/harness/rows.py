# SPDX-License-Identifier: Apache-2.0
"""Generates rows from seeds, writes them to files, and computes the expected results."""

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
# A full hour. Not near 0, because Spark uses 0 as the initial watermark.
EPOCH = 1_767_225_600_000
FOR_EVER = 2**62
# Concurrent subtasks.
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
    """Return Spark expressions for the values of :func:`summary`."""
    from pyspark.sql import functions as F

    columns = [F.col(name).cast("long") for name in names]
    return [F.count(F.lit(1)).alias("n"), F.sum(columns[-1]), F.sum(_weigh(columns))]


def observed(df: DataFrame) -> DataFrame:
    """Make a query observe the values of :func:`summary` for its output."""
    return df.observe("results", *checksums(df.columns))


def _weigh(columns: Sequence[Any]) -> Any:
    total: Any = 0
    for weight, column in zip(_WEIGHTS, columns):
        total = column * weight + total
    total = total % _MODULUS
    # Squared, because plain sums would not change if two rows exchanged a column's values.
    return total * total % _MODULUS


def read_rows(targets: Iterable[Path]) -> list[Ints]:
    """Return the columns that jobs wrote, as rows of plain text or in PyFlink's format."""
    lines: list[str] = []
    for target in targets:
        for path in [target] if target.is_file() else target.rglob("*"):
            if path.is_file():
                lines += path.read_text().splitlines()
    rows = [line.rpartition("[")[2].rstrip("]").split(",") for line in lines]
    return list(np.array(rows, np.int64).T) if rows else []


# -- files --


def write_halves(path: Path, **columns: npt.NDArray[Any]) -> Path:
    """Write columns as Parquet, alternating rows between two files. Returns their directory."""
    path.mkdir(parents=True, exist_ok=True)
    for part in range(SUBTASKS):
        halves = {name: column[part::SUBTASKS] for name, column in columns.items()}
        pq.write_table(pa.table(halves), path / f"{part}.parquet")
    return path


def _as_schema(name: str, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert a column to its type in all cases' schemas: LONG for times and amounts, INT for keys and sides."""
    return column.astype(np.int32) if name in ("key", "side") else column


def draw(
    seed: Sequence[int], rows: int, keys: int, begin: int, span: int, *, disorder: int = 0, grid: int = 1
) -> tuple[Ints, Ints, np.random.Generator]:
    """Return random keys, evenly increasing times, and the generator, for more columns.

    Args:
        span: time span of all rows, in milliseconds.
        disorder: maximum delay of a row, in milliseconds.
        grid: times are multiples of this number.
    """
    random = np.random.default_rng(seed)
    key = random.integers(0, keys, rows)
    ts = begin + np.arange(rows) * span // rows
    if disorder:
        ts -= random.integers(0, disorder, rows)
    # Both halves end at the same time, for equal watermarks.
    key[-SUBTASKS:] = range(SUBTASKS)
    ts[-SUBTASKS:] = begin + span - 1
    return key, ts // grid * grid, random


class MicroBatches(ABC):
    """The micro-batches of a work, generated from seeds, and their expected results.

    Attributes:
        small_ones: number of small micro-batches at the beginning.
        streams: number of streams in a micro-batch, each with ``rows`` rows.

    Args:
        rows: rows per stream in a full micro-batch.
        small: rows per stream in a small micro-batch.
        directory: the folder for their files.
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
        """Yield the columns that each micro-batch must emit.

        Args:
            late: whether timers and windows fire one micro-batch after the watermark, as in Spark.
        """

    @abstractmethod
    def of_job(self, number: int) -> Columns:
        """Return the expected result of a job over one micro-batch's rows alone."""

    def rows_of(self, number: int) -> int:
        """Return the number of rows of one stream in a micro-batch."""
        return self.small if number < self.small_ones else self.rows

    def length(self, number: int) -> int:
        """Return the number of rows in a micro-batch."""
        return self.streams * self.rows_of(number)

    def job_length(self, number: int) -> int:
        """Return the number of rows in a job over a micro-batch."""
        return self.length(number)

    def job_columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        """Return the rows of a job."""
        return self.columns(number, stream)

    def expected(self, number: int, kind: str) -> list[int]:
        """Return the summary of a micro-batch's expected output for a kind of contender."""
        if kind == "limit":
            return summary(list(self.columns(number).values()))
        late = kind in ("spark", "own")  # on pillarbox, Spark's programs keep Spark's time
        summaries = self._known[late]
        while len(summaries) <= number:
            summaries.append(summary(next(self._running[late])))
        return summaries[number]

    def wrong_job(self, number: int, columns: list[Ints]) -> str:
        """Return how a job's results differ from the expected results, or ""."""
        results, expected = summary(columns), summary(self.of_job(number))
        return "" if results == expected else f"{results}, not {expected}"

    def path(self, number: int, form: str) -> Path:
        """Return the directory with a micro-batch's files. Writes missing files.

        Args:
            form: ``parquet`` (a file for each half of the keys), ``csv`` (for jobs: a directory for each half, and
                ``whole``), or ``csv-whole`` (one file, with column names). If there are two streams, each has a
                directory.
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
