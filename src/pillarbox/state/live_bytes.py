"""How many bytes the current entries of a state log take, as far as that is known without a look at each.

An entry counts as the mean of its chunk. So the estimate is off by as much as sizes differ within chunks, and the error
goes with the chunk: when all its entries are out of date, they have been taken off in full. Only the mailbox thread
may touch it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["LiveBytes"]


class LiveBytes:
    """The sum over the entries that are current."""

    def __init__(self) -> None:
        # The first entry of each chunk, and the mean size of its entries; oldest first.
        self._chunks: deque[tuple[int, float]] = deque()
        self._sum = 0.0

    @property
    def total(self) -> int:
        """The estimate, in bytes."""
        return max(0, round(self._sum))

    def add(self, start: int, entries: int, live: int, size: int, *, oldest: bool = False) -> None:
        """Take account of a chunk of ``size`` bytes, of whose entries from ``start`` on so many are current."""
        mean = size / max(1, entries)
        (self._chunks.appendleft if oldest else self._chunks.append)((start, mean))
        self._sum += live * mean

    def remove(self, entries: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Take off entries that have gone out of date."""
        if not len(entries) or not self._chunks:
            return
        starts = np.array([start for start, _ in self._chunks])
        means = np.array([mean for _, mean in self._chunks])
        self._sum -= float(means[np.searchsorted(starts, np.asarray(entries), "right") - 1].sum())

    def forget_before(self, entry: int) -> None:
        """Forget the chunks that have left the log: those before the one that begins with ``entry``."""
        while self._chunks and self._chunks[0][0] < entry:
            self._chunks.popleft()
