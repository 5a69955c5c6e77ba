"""Records, which flow between operators in batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._copies import are_fixed
from pillarbox._rows import rows_from_arrow


class Records:
    """A batch of consecutive records of a stream, processed in one call.

    Attributes:
        timestamps: a list of event times (Unix time in ms, or None), or None if no record has an event time.
    """

    __slots__ = ("_is_fixed", "timestamps", "values")

    values: list[Any]
    timestamps: Sequence[int | None] | None

    def __init__(self, values: list[Any], timestamps: Sequence[int | None] | None = None) -> None:
        self.values = values
        self.timestamps = timestamps
        self._is_fixed: bool | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_fixed(self) -> bool:
        if self._is_fixed is None:
            self._is_fixed = are_fixed(self.values)
        return self._is_fixed

    def choose(self, chosen: Sequence[bool]) -> Records:
        timestamps = self.timestamps
        stamps = None if timestamps is None else list(compress(timestamps, chosen))
        records = Records(list(compress(self.values, chosen)), stamps)
        records._is_fixed = self._is_fixed or None
        return records

    def copied(self, copied: Callable[[Any], Any]) -> Records:
        """Return these records with copied values, or ``self`` if the values are immutable."""
        return self if self.is_fixed else Records(list(map(copied, self.values)), self.timestamps)

    def slice(self, start: int, stop: int) -> Records:
        timestamps = self.timestamps
        return Records(self.values[start:stop], None if timestamps is None else timestamps[start:stop])

    def take(self, indices: npt.NDArray[np.int64]) -> Records:
        values, timestamps, positions = self.values, self.timestamps, indices.tolist()
        stamps = None if timestamps is None else list(map(timestamps.__getitem__, positions))
        return Records(list(map(values.__getitem__, positions)), stamps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} values)"


class ArrowRecords(Records):
    """A columnar batch of records. Rows become Python objects when a function first reads them.

    ``stamps`` are the rows' timestamps (Unix time in ms), or None.
    """

    __slots__ = ("_timestamps", "_values", "batch", "stamps")

    def __init__(self, batch: pa.RecordBatch, stamps: npt.NDArray[np.int64] | None = None) -> None:
        self.batch: Any = batch
        self.stamps: Any | None = stamps
        self._values: list[Any] | None = None
        self._timestamps: list[int | None] | None = None
        self._is_fixed: bool | None = None

    @property
    def values(self) -> list[Any]:  # type: ignore[override]
        if self._values is None:
            self._values = list(rows_from_arrow(self.batch))
        return self._values

    @property
    def timestamps(self) -> list[int | None] | None:  # type: ignore[override]
        if self._timestamps is None and self.stamps is not None:
            self._timestamps = self.stamps.tolist()
        return self._timestamps

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def is_fixed(self) -> bool:
        if self._is_fixed is None:
            self._is_fixed = not any(pa.types.is_nested(field.type) for field in self.batch.schema)
        return self._is_fixed

    def copied(self, copied: Callable[[Any], Any]) -> ArrowRecords:
        """Return records with the same columns but separate Python rows, or ``self`` if the values are immutable."""
        return self if self.is_fixed else ArrowRecords(self.batch, self.stamps)

    def take(self, indices: npt.NDArray[np.int64]) -> ArrowRecords:
        return ArrowRecords(self.batch.take(pa.array(indices)), None if self.stamps is None else self.stamps[indices])

    def slice(self, start: int, stop: int) -> ArrowRecords:
        return ArrowRecords(
            self.batch.slice(start, stop - start), None if self.stamps is None else self.stamps[start:stop]
        )


def pickled_records(batch: pa.RecordBatch) -> Records:
    return Records([pickle.loads(value) for value in batch.column(0).to_pylist()])
