"""Writing a state log: the chunks of an epoch, with what it changed and what cleaning moves.

A row that would fill a chunk has a value of its own beside the chunks, which is removed with its entry and never
written again. The elements of large maps and lists are entries of their own, so a change of one writes that one.

Only the mailbox thread may do it.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import ByValueError
from pillarbox._errors import OperatorError, describe, shorten
from pillarbox._state.chunks.chunk import Chunk, Entries, large_element, large_row
from pillarbox._state.chunks.head import Mark, check_classes_of_keys
from pillarbox._state.chunks.large_collections import batch_of
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.heap.rows import stale_entry
from pillarbox._state.keys.addresses import OPERATOR, is_space, whose
from pillarbox._state.log import limits
from pillarbox._state.log.cleaner import clean, drop_stale
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.layouts import as_written
from pillarbox._state.types.sizes import sizes_of

__all__ = ["EpochWriter", "cannot_be_written"]

# From this number of bytes on, the writes of an epoch show how exact the estimates of sizes were.
_CALIBRATING = 4096
# So many removed keys fit into a chunk: each takes a byte or two.
_MOST_REMOVED = 256 * 1024


class EpochWriter:
    """Writes what one epoch adds to a log.

    Args:
        contents: what there is in the log; the epoch's chunks are added to it.

    Attributes:
        bytes_written: payload bytes put into the store so far.
    """

    def __init__(self, contents: LogContents, store: ChunkStore, epoch: int) -> None:
        self._contents = contents
        self._store = store
        self._epoch = epoch
        self.bytes_written: int = 0

    def put(self, number: int, payload: bytes) -> None:
        """Put a value into the store."""
        self._store.put(number, payload)
        self.bytes_written += len(payload)

    def write_changes(self) -> None:
        """Append what the epoch changed, and what cleaning moves; note what is out of date by that.

        Raises:
            OperatorError: a value cannot be pickled.
            TypeMismatchError: a value does not fit its declared type.
        """
        contents = self._contents
        backend, collections, ledger = contents.backend, contents.collections, contents.ledger
        plain, scale = contents.plain, contents.scale
        changed, removed = backend.take_changes()
        if contents.classes_of_keys:
            keys = [address[0] if is_space(address) else address for address in changed if address != OPERATOR]
            check_classes_of_keys(keys, contents.classes_of_keys, contents.identity)
        contents.layouts.note(contents.following)
        elements_gone, batches = collections.take_changes(changed, removed, scale)
        sizes = self._sizes_of(changed)
        for index, address, grown in collections.grow(changed, sizes, scale):
            batches += grown
            sizes[index : index + 1] = self._sizes_of({address: changed[address]})
        if plain is not None:
            plain.check(changed, collections.slim(changed, changed.values()))
            for batch in batches:
                plain.check_elements(collections.spec(batch.elements.address, batch.elements.slot), batch.elements)
        older = stale_entry(np.array([row[0] for row in changed.values()], np.int64))
        addresses = ledger.as_kept([*changed], older)
        gone = np.array([*removed.values(), *elements_gone], np.int64)
        stale = np.concatenate([older, gone, *(batch.older for batch in batches)])
        stale = stale[stale >= 0]
        large = ledger.large
        for entry in stale.tolist() if contents.large else ():
            number = contents.forget_large(entry)
            if number is not None:
                self._store.remove(number)
        # Large values go at once; what the log may take shrinks by twice as much, so cleaning has to make up for it.
        bytes_gone = ledger.replace(stale) + large - ledger.large
        if contents.rewrites:
            drop_stale(contents, self._store)
            contents.rewrites = False
        added = float(sizes.sum()) + sum(float(batch.sizes.sum()) for batch in batches)
        moved, elements = clean(contents, self._store, added, bytes_gone)
        if moved:
            # These are unchanged: it is the entry of their mark that goes out of date.
            entries = np.array([row[0] for row in moved.values()], np.int64)
            ledger.replace(entries)
            older = np.concatenate([older, entries])
            sizes = np.concatenate([sizes, self._sizes_of(moved)])
            changed.update(moved)
            addresses += moved
        for collection, places in elements.items():
            order = collection.in_order(places)
            batches.append(batch_of(collection, order, [collection.entries[place] for place in order], scale))
            ledger.replace(batches[-1].older)
        self._append(
            Entries(addresses, [*changed.values()], older, sizes, batches, spaces=bool(backend.spaces.slots)), gone
        )
        ledger.settle()

    def _sizes_of(self, rows: dict[Any, list[Any]]) -> npt.NDArray[np.float64]:
        """Return about how many bytes each row takes in the log."""
        contents = self._contents
        slim = contents.collections.slim(rows, rows.values())
        if not contents.backend.spaces.slots:
            return sizes_of(list(rows), slim) * contents.scale
        sizes = np.zeros(len(rows))
        of_spaces = np.fromiter(map(is_space, rows), np.bool_, len(rows))
        for spaces in (False, True):
            chosen = (of_spaces == spaces).tolist()
            keys, found = list(compress(rows, chosen)), list(compress(slim, chosen))
            if spaces:
                keys, found = [key for key, *_ in keys], [[row[1][1], *row[2:]] for row in found]
            sizes[of_spaces == spaces] = sizes_of(keys, found)
        return sizes * contents.scale

    def _append(self, entries: Entries, removed: npt.NDArray[np.int64]) -> None:
        contents, chunk_bytes = self._contents, limits.CHUNK_BYTES
        # Entries that cleaning moves, and large ones, stay where they are.
        for index, entry in enumerate(entries.so_far()) if contents.large else ():
            if entry in contents.large:
                entries.large[index] = contents.large.pop(entry)
        for index in np.flatnonzero(entries.sizes > chunk_bytes).tolist():
            if index not in entries.large:
                entries.large[index] = self._write_large(entries, index)
        ends = np.cumsum(entries.shares())
        before = self.bytes_written
        start = 0
        while start < len(entries):
            filled = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + chunk_bytes, "right"))
            stop = min(max(filled, start + 1), start + limits.CHUNK_ROWS, len(entries))
            last = removed if stop == len(entries) else removed[:0]
            self._write_chunk(entries, start, stop, last[:_MOST_REMOVED])
            start = stop
        for rest in range(_MOST_REMOVED if start else 0, len(removed), _MOST_REMOVED):
            self._write_chunk(entries, start, start, removed[rest : rest + _MOST_REMOVED])
        written = self.bytes_written - before
        if written >= _CALIBRATING and start:
            contents.scale = min(max(written / float(entries.sizes.sum()) * contents.scale, 0.25), 4.0)

    def _write_chunk(self, entries: Entries, start: int, stop: int, removed: npt.NDArray[np.int64]) -> None:
        contents = self._contents
        chunk = self._chunk(entries, start, stop, removed)
        try:
            payload = chunk.encode(contents.dump)
        except Exception as error:
            raise self._unwritable(entries, start, stop, error) from error
        if len(payload) > 4 * limits.CHUNK_BYTES and stop > start and not (chunk.large and stop - start == 1):
            # Values with objects whose size does not show.
            if stop - start > 1:
                middle = (start + stop) // 2
                self._write_chunk(entries, start, middle, removed[:0])
                self._write_chunk(entries, middle, stop, removed)
            else:
                entries.large[start] = self._write_large(entries, start)
                self._write_chunk(entries, start, stop, removed)
            return
        self.put(contents.following, payload)
        contents.newest = Mark.of(payload, self._epoch)
        for index, where in chunk.large.items():
            contents.large[contents.entry + index] = where
        contents.add(contents.following, chunk, len(payload))
        contents.following += 1

    def _chunk(self, entries: Entries, start: int, stop: int, removed: npt.NDArray[np.int64]) -> Chunk:
        """Return a chunk of some of the entries, whose rows and elements get the numbers of the next ones."""
        contents = self._contents
        keys, rows = entries.keys[start:stop], entries.rows[start:stop]
        for entry, row in enumerate(rows, contents.entry):
            row[0] = entry
        at = contents.entry + len(rows)
        elements = []
        for collection, places, found in entries.elements(start, stop):
            for entry, place in enumerate(places, at):
                collection.entries[place] = entry
            at += len(places)
            elements.append(found)
        stale = np.concatenate([entries.stale[start:stop], removed])
        own = min(max(entries.own_keys - start, 0), len(keys))
        rows = contents.collections.slim(keys, rows)
        chunk = Chunk(
            keys,
            rows[:own] + list(map(as_written, rows[own:])),
            contents.entry - stale[stale >= 0],
            self._epoch,
            contents.newest,
            entries.weights(start, stop),
            {index - start: where for index, where in entries.large.items() if start <= index < stop},
            spaces=len(keys) - own,
            elements=elements,
            apart=contents.collections.apart(keys),
        )
        for index in chunk.large:
            chunk.put(index, None)
        return chunk

    def _write_large(self, entries: Entries, index: int) -> tuple[int, Mark]:
        """Write a row or an element as a value of its own; return its number and its mark."""
        contents = self._contents
        try:
            if index < len(entries.rows):
                of_space = is_space(entries.keys[index])
                layout = contents.layouts.newest(of_space=of_space)
                (row,) = contents.collections.slim([entries.keys[index]], [entries.rows[index]])
                payload = large_row(layout, as_written(row) if of_space else row, contents.dump)
            else:
                ((_, _, found),) = entries.elements(index, index + 1)
                payload = large_element(found.values[0], contents.dump)
        except Exception as error:
            raise self._unwritable(entries, index, index + 1, error) from error
        if len(payload) > limits.VALUE_BYTES:
            raise self._too_large(entries, index, len(payload))
        contents.larges += 1
        self.put(-contents.larges, payload)
        contents.ledger.large += len(payload)
        return -contents.larges, Mark.of(payload, self._epoch)

    def _too_large(self, entries: Entries, index: int, size: int) -> OperatorError:
        """Return the error that names the state that Spark cannot take."""
        collections = self._contents.collections
        if index < len(entries.rows):
            address, row = entries.keys[index], entries.rows[index]
            (slim,), lead = collections.slim([address], [row]), 1 + is_space(address)
            sizes = {slot: len(self._contents.dump(value)) for slot, value in enumerate(slim[lead:], lead)}
            slot, what = max(sizes, key=lambda slot: sizes[slot]), ""
        else:
            ((_, _, found),) = entries.elements(index, index + 1)
            address, slot, what = found.address, found.slot, f"an element, {shorten(found.names()[0])}, of "
        name, kind = collections.spec(address, slot)
        return OperatorError(
            f"operator {self._contents.backend.operator!r}: {what}the {kind} state {name.partition('/')[2]!r} of"
            f" {whose(address)} cannot be written: it takes {size} bytes, and Spark takes no value of more than"
            f" {limits.VALUE_BYTES}: keep it in a map or list state, whose elements are written one by one, or"
            " under several keys"
        )

    def _unwritable(self, entries: Entries, start: int, stop: int, error: Exception) -> OperatorError:
        """Return the error that names the state that cannot be pickled."""
        operator, collections = self._contents.backend.operator, self._contents.collections
        addresses = entries.keys[start:stop]
        parts: list[tuple[Any, int, Any]] = []
        for address, row in zip(addresses, collections.slim(addresses, entries.rows[start:stop])):
            lead = 1 + is_space(address)
            parts += [(address, slot, value) for slot, value in enumerate(row[lead:], lead)]
        for _, _, found in entries.elements(start, stop):
            parts += [(found.address, found.slot, element) for element in zip(found.names(), found.values)]
        for address, slot, value in parts:
            try:
                self._contents.dump((address[0] if is_space(address) else address, value))
            except Exception as its:
                name, kind = collections.spec(address, slot)
                return OperatorError(
                    f"operator {operator!r}: the {kind} state {name.partition('/')[2]!r} of"
                    f" {whose(address)} {cannot_be_written(its)}"
                )
        # Each by itself can be written, now that it is tried again.
        return OperatorError(f"operator {operator!r}: the epoch's state cannot be written: {describe(error)}")


def cannot_be_written(error: Exception) -> str:
    """Return the rest of a sentence that says why a value cannot be written, and what to do."""
    if isinstance(error, ByValueError):
        return (
            f"cannot be written: {error}; after a restart it would be another class or function, which equals none of"
            " the program's: define it at the top level of a module, outside of all functions"
        )
    return (
        f"cannot be written: {describe(error)}; what cannot be pickled (connections, locks, generators) belongs into"
        " the function, made in open()"
    )
