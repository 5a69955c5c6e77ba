"""Records grouped by key, in batch mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pillarbox._elements.records import Records


class KeyedRun(NamedTuple):
    """A run: consecutive records of one input in batch mode, grouped by key and sorted by time within a key.

    The first key's records may have begun in the previous run, and the last key's may continue in the next run.

    Attributes:
        keys: the keys, in order; empty for a non-keyed stream.
        ends: the end positions of the keys that are complete with this run. The first position is 0 if the previous
            run's last key has no more records.
    """

    input_index: int
    records: Records
    keys: Sequence[Any] = ()
    ends: Sequence[int] = ()

    def stretches(self) -> Iterator[tuple[Any, int, int, bool]]:
        """Yield ``(key, start position, end position, whether the key ends)`` for each key.

        The key is None if the run only ends the previous run's last key.
        """
        keys = iter(self.keys)
        start = 0
        for end in self.ends:
            yield next(keys) if start < end else None, start, end, True
            start = end
        if start < len(self.records):
            yield next(keys, None), start, len(self.records), False
