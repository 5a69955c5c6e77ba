"""Records grouped by key, in batch mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pillarbox._elements import Records


class KeyedRun(NamedTuple):
    """A run of one input, grouped by key and ordered by time within a key.

    The first key may have begun in the previous run, and the last key may continue in the next run.

    Attributes:
        input_index: the index of the input.
        keys: the keys, in order; empty for a non-keyed stream.
        ends: for each key that ends in this run, the number of the run's records before its end. 0 means that the
            previous run's last key ends.
    """

    input_index: int
    records: Records
    keys: Sequence[Any] = ()
    ends: Sequence[int] = ()

    def stretches(self) -> Iterator[tuple[Any, int, int, bool]]:
        """Yield each key's records: key, first position, end position, and whether the key ends.

        The key is None if it ends without a record in this run.
        """
        keys = iter(self.keys)
        start = 0
        for end in self.ends:
            yield next(keys) if start < end else None, start, end, True
            start = end
        if start < len(self.records):
            yield next(keys, None), start, len(self.records), False
