"""Records that come key by key, in batch mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pillarbox._elements import Records


class KeyedRun(NamedTuple):
    """A run of one input whose records come key by key, and by time within a key.

    The last key may have more records in the next run, and the first one may have had some in the run before.

    Attributes:
        way_in: the number of the input that they are for.
        records: the records.
        keys: the keys, in their order; empty where the stream has none.
        ends: for each key that ends in this run, how many of the records come before its end. If the first of them is
            0, a key of the run before ends.
    """

    way_in: int
    records: Records
    keys: Sequence[Any] = ()
    ends: Sequence[int] = ()

    def stretches(self) -> Iterator[tuple[Any, int, int, bool]]:
        """Return the records of each key: the key, the position of the first, and after the last; whether the key ends.

        A key that ends without a record in this run is None.
        """
        keys = iter(self.keys)
        start = 0
        for end in self.ends:
            yield next(keys) if start < end else None, start, end, True
            start = end
        if start < len(self.records):
            yield next(keys, None), start, len(self.records), False
