"""The content of a state log, chunk by chunk: whose entries, how many bytes, and how many of these are still current.

The log is a queue: it gets shorter at its old end only, and what is current there has to be written again first. So
whether it will keep within its bound depends on where the bytes lie that are out of date; the ledger knows. Only the
mailbox thread may touch it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._state.chunks.chunk import Chunk

# Of each byte that epochs change, cleaning may write this many again (CLEANED, of which the smallest rows' numbers in
# the log take some), and one more where bytes only go; what is reckoned with beforehand is a little less.
CLEANED = 1.7
_RECKONED = 1.5


# The figures of a chunk: its first entry; the bytes that it takes, and those of its current entries; how many of
# these there are; and how many bytes an entry takes, in the mean.
_FIGURES = np.dtype(
    [("start", np.int64), ("bytes", np.float64), ("live", np.float64), ("current", np.int64), ("mean", np.float64)]
)


class ChunkOnFile(NamedTuple):
    """A chunk in the log.

    Attributes:
        start: the number of its first entry.
        rows: the addresses of its rows, with the key objects that the rows themselves have; None where the entry is out
            of date: whoever has it keeps its key alive. A list until :meth:`Ledger.settle` has come by.
        elements: of the entries after these: address and slot of a map or list, and what its elements are found by.
        entries: how many it has.
        sizes: how many bytes each entry takes; None: all take the same.
    """

    number: int
    start: int
    rows: npt.NDArray[np.object_] | list[Any]
    elements: list[tuple[Any, int, Sequence[Any]]]
    entries: int
    sizes: npt.NDArray[np.float32] | None

    @staticmethod
    def of(chunk: Chunk, rows: npt.NDArray[np.object_] | list[Any]) -> ChunkOnFile:
        """Return what is kept of a chunk."""
        elements = [(found.address, found.slot, found.names()) for found in chunk.elements]
        return ChunkOnFile(chunk.number, chunk.start, rows, elements, chunk.count, chunk.sizes())

    def owners(self, start: int) -> Iterator[tuple[Any, int, Any]]:
        """Return what the entries hold, from one on: addresses, each with slot 0 and None for its row.

        Of an element of a map or list it is the slot, and what the element is found by.
        """
        # There may be millions to look at, so no object is made for each in Python.
        parts = [zip(self.rows[start:], repeat(0), repeat(None))]
        start = max(0, start - len(self.rows))
        for address, slot, names in self.elements:
            parts.append(zip(repeat(address), repeat(slot), names[start:]))
            start = max(0, start - len(names))
        return chain.from_iterable(parts)

    def forget(self, indices: npt.NDArray[np.int64]) -> None:
        """Forget whose entries these are: they are out of date."""
        indices = indices[indices < len(self.rows)]
        if isinstance(self.rows, list):
            for index in indices.tolist():
                self.rows[index] = None
        else:
            self.rows[indices] = None


def _addresses(rows: Sequence[Any] | npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
    """Return addresses of rows as an array, whose elements may be tuples."""
    return np.fromiter(rows, np.object_, len(rows))


class Ledger:
    """The chunks of a log, oldest first.

    Attributes:
        chunks: the chunks.
        large: bytes of the large rows and elements, which lie next to the chunks and go with their entries.
    """

    def __init__(self) -> None:
        self.chunks: deque[ChunkOnFile] = deque()
        self.large = 0
        self._figures: npt.NDArray[np.void] = np.zeros(0, _FIGURES)
        self._loading: list[tuple[int, int, float, int, float]] = []
        # Loaded chunks, newest first, that still hold keys of entries that were out of date: their numbers, and which
        # of their entries were not. The epoch that loaded them lets them be: its first rows wait for nothing.
        self._unsettled: list[tuple[int, npt.NDArray[np.bool_]]] = []
        self._just_loaded = False

    @property
    def live_bytes(self) -> int:
        """About how many bytes a new log with the same state would take."""
        return max(0, round(float(self._figures["live"].sum()))) + self.large

    @property
    def current(self) -> int:
        """The number of current entries."""
        return int(self._figures["current"].sum())

    @property
    def log_bytes(self) -> int:
        """How many bytes the log takes, without its head."""
        return round(float(self._figures["bytes"].sum())) + self.large

    def add(self, chunk: Chunk) -> None:
        """Take account of a new chunk, all of which is current."""
        self.chunks.append(ChunkOnFile.of(chunk, _addresses(chunk.keys)))
        figures = (chunk.start, chunk.size, chunk.own, chunk.count, chunk.own / max(1, chunk.count))
        self._figures = np.append(self._figures, np.array([figures], _FIGURES))

    def load(self, chunk: Chunk) -> None:
        """Take account of a chunk before the others; :meth:`end_loading` ends it."""
        found = ChunkOnFile.of(chunk, chunk.keys)
        rows = int(np.count_nonzero(chunk.current))
        mean = chunk.own / max(1, chunk.count)
        live = rows * mean if found.sizes is None else float(found.sizes[chunk.current].sum())
        self.chunks.appendleft(found)
        self._loading.append((chunk.start, chunk.size, live, rows, mean))
        self._unsettled.append((chunk.number, chunk.current))

    def end_loading(self) -> None:
        """Compute the figures of the chunks that were loaded."""
        self._figures = np.array(self._loading[::-1], _FIGURES)
        self._loading = []
        self._just_loaded = True

    def settle(self) -> None:
        """Let go of what one loaded chunk holds of entries that were out of date.

        A start would wait for that, so each later epoch does it for one chunk, as long as there are some.
        """
        if self._just_loaded:
            self._just_loaded = False
            return
        while self._unsettled and self.chunks:
            number, current = self._unsettled.pop()
            index = number - self.chunks[0].number
            if index >= 0:  # else the chunk is gone
                chunk = self.chunks[index]
                rows = _addresses(chunk.rows)
                rows[~current[: len(rows)]] = None
                self.chunks[index] = chunk._replace(rows=rows)
                return

    def replace(self, entries: npt.NDArray[np.int64]) -> float:
        """Take note that entries have gone out of date; return how many bytes these take."""
        if not len(entries) or not len(self._figures["start"]):
            return 0.0
        entries = np.sort(entries[entries >= self._figures["start"][0]])
        places = np.searchsorted(self._figures["start"], entries, "right") - 1
        sizes = self._figures["mean"][places]
        for chunk, part in self._by_chunk(entries):
            indices = entries[part] - chunk.start
            chunk.forget(indices)
            if chunk.sizes is not None:
                sizes[part] = chunk.sizes[indices]
        count = len(self._figures["start"])
        self._figures["live"] -= np.bincount(places, sizes, count)
        self._figures["current"] -= np.bincount(places, minlength=count)
        return float(sizes.sum())

    def _by_chunk(self, entries: npt.NDArray[np.int64]) -> Iterator[tuple[ChunkOnFile, slice]]:
        """Return the chunks that have some of the entries, which are sorted, and which of them each has."""
        bounds = np.searchsorted(entries, self._figures["start"]).tolist()
        for chunk, start, stop in zip(self.chunks, bounds, [*bounds[1:], len(entries)]):
            if start < stop:
                yield chunk, slice(start, stop)

    def size_of(self, entry: int) -> float:
        """Return how many bytes an entry of the oldest chunk takes."""
        oldest = self.chunks[0]
        return float(self._figures["mean"][0] if oldest.sizes is None else oldest.sizes[entry - oldest.start])

    def mean_of_oldest(self) -> float:
        """Return how many bytes of the oldest chunk there are for each of its entries."""
        return float(self._figures["bytes"][0]) / max(1, self.chunks[0].entries)

    def oldest_is_stale(self) -> bool:
        """Return whether the oldest chunk has no current entry."""
        return not self._figures["current"][0]

    def drop_oldest(self) -> ChunkOnFile:
        """Forget the oldest chunk."""
        self._figures = self._figures[1:]
        return self.chunks.popleft()

    def excess(self, added: float, cleaned: int) -> float:
        """Return how many bytes more than twice the current ones the log has, or will have unless cleaning begins now.

        On the way to what is out of date, cleaning writes again all that is current before it. Meanwhile as much goes
        out of date as epochs change, which the log is longer by until cleaning comes by.

        Args:
            added: the bytes that the epoch adds.
            cleaned: how many entries of the oldest chunk have been looked at: that much of it is as good as gone.
        """
        live = np.cumsum(self._figures["live"])
        stale = np.cumsum(self._figures["bytes"]) - live
        # (After the oldest chunk: else cleaning would come in bursts, one for each chunk.)
        ahead = float(np.max((live[1:] - live[:1]) / _RECKONED - stale[:-1], initial=0.0))
        gone = float(self._figures["bytes"][0]) * cleaned / self.chunks[0].entries if cleaned else 0.0
        return self.log_bytes - gone + added + ahead - 2 * (self.live_bytes + added)
