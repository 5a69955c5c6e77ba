"""Runs of records that wait: in memory up to a bound, in a temporary file beyond."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from pillarbox._elements import Records, decode, encode
from pillarbox._task.network.unpicklable import refuse_unpicklable

__all__ = ["NOT_KEPT", "RecordSpool"]

# What is wrong with a record that cannot be kept so.
NOT_KEPT = "cannot be pickled, as it has to be in batch mode, where records wait for others"
_MEMORY_BOUND = 64 * 1024 * 1024


class RecordSpool:
    """Keeps runs in their order, each with the number of the input that it is for.

    Only the mailbox thread may touch it.

    Args:
        operator: the name of the operator that gets the records, for errors.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BOUND)  # noqa: SIM115
        self._entries: list[tuple[int, int, int]] = []
        self._end = 0

    def add(self, index: int, records: Records) -> None:
        """Keep a run.

        Raises:
            OperatorError: a record cannot be pickled.
        """
        try:
            payload = encode(records)
        except Exception as error:
            refuse_unpicklable(error, self._operator, records.values, "gets", NOT_KEPT)
        self._file.seek(self._end)
        self._file.write(payload)
        self._entries.append((index, self._end, len(payload)))
        self._end += len(payload)

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        """Return the runs, each with its number."""
        for index, start, length in self._entries:
            self._file.seek(start)
            records = decode(self._file.read(length))
            assert isinstance(records, Records)
            yield index, records

    def close(self) -> None:
        """Drop what is kept."""
        self._file.close()
