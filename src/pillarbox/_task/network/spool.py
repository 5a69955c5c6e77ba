"""Stores bytes and records in a temporary file. Mailbox thread only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from pillarbox._elements.buffers import decode, encode
from pillarbox._elements.records import Records
from pillarbox._task.network.unpicklable import refuse_unpicklable

NOT_KEPT = "cannot be pickled, as batch mode requires"
_MEMORY_BOUND = 64 * 1024 * 1024

Extent = tuple[int, int]
"""(start, length) of bytes in a spool."""


class Spool:
    """Stores bytes in memory up to a limit, then in a temporary file."""

    def __init__(self, memory: int | None = None) -> None:
        self._memory = memory
        self._file: IO[bytes] | None = None
        self._end = 0

    def append(self, payload: bytes) -> Extent:
        if self._file is None:
            bound = _MEMORY_BOUND if self._memory is None else self._memory
            self._file = tempfile.SpooledTemporaryFile(bound)  # noqa: SIM115
        extent = self._end, len(payload)
        self._file.seek(self._end)
        self._file.write(payload)
        self._end += len(payload)
        return extent

    def read(self, extent: Extent) -> bytes:
        assert self._file is not None
        self._file.seek(extent[0])
        return self._file.read(extent[1])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._end = 0


class RecordSpool:
    """Stores batches of records in order, each with the index of its input."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._spool = Spool()
        self._entries: list[tuple[int, Extent]] = []

    def add(self, index: int, records: Records) -> None:
        try:
            payload = encode(records)
        except Exception as error:
            refuse_unpicklable(error, self._operator, records.values, "gets", NOT_KEPT)
        self._entries.append((index, self._spool.append(payload)))

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        for index, extent in self._entries:
            records = decode(self._spool.read(extent))
            assert isinstance(records, Records)
            yield index, records

    def close(self) -> None:
        self._spool.close()
