"""Writing a state log: the chunks of an epoch, with what it changed and what cleaning moves.

A row that would fill a chunk has a value of its own next to the chunks, which is removed with its entry and never
written again. The elements of large maps and lists are entries of their own, so a change of one writes that one.

Only the mailbox thread may do it.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from pillarbox._elements.buffers import ByValueError
from pillarbox._errors import OperatorError, describe, shorten
from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import Mark, check_classes_of_keys
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import OPERATOR, format_owner, is_namespaced
from pillarbox._state.log import limits
from pillarbox._state.log.cleaner import clean, drop_stale
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.entries import Entries, RowSection
from pillarbox._state.log.sections import ElementSection
from pillarbox._state.slots import stale_entry

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
        collections, ledger, scale = contents.collections, contents.ledger, contents.scale
        changed, removed = contents.backend.take_all_changes()
        if contents.classes_of_keys:
            of_keys, of_namespaces = ([row[1] for row in rows] for rows in changed)
            keys = of_keys + [address[0] for address in of_namespaces if address != OPERATOR]
            check_classes_of_keys(keys, contents.classes_of_keys, contents.identity)
        contents.layouts.note(contents.head.following)
        elements_gone, elements = collections.take_changes(chain(*changed), removed, scale)
        sections = [RowSection(table, collections, scale) for table in contents.backend.tables]
        for section, rows in zip(sections, changed):
            section.add(rows, stale_entry(np.array([row[0] for row in rows], np.int64)))
            elements += section.grow()
        self._check(sections, elements)
        gone = np.array([*removed.values(), *elements_gone], np.int64)
        stale = np.concatenate([gone, *(section.older for section in (*sections, *elements))])
        bytes_gone = self._replace(stale[stale >= 0])
        if contents.rewrites:
            drop_stale(contents, self._store)
            contents.rewrites = False
        added = sum(float(section.sizes.sum()) for section in (*sections, *elements))
        moved, moved_elements = clean(contents, self._store, added, bytes_gone)
        for section, rows in zip(sections, moved):
            # These are unchanged: it is the entry of their mark that goes out of date.
            entries = np.array([row[0] for row in rows], np.int64)
            ledger.replace(entries)
            section.add(rows, entries)
        for collection, places in moved_elements.items():
            elements.append(collections.moved(collection, places, scale))
            ledger.replace(elements[-1].older)
        self._append(Entries([*sections, *elements]), gone)
        ledger.settle()

    def _check(self, sections: list[RowSection], elements: list[ElementSection]) -> None:
        """Check that what is written is of its declared types; and where state is plain, that it is plain data."""
        plain = self._contents.plain
        for rows in sections:
            slim = self._contents.collections.slim(rows.rows)
            rows.table.types.check(slim)
            if plain is not None:
                plain.check(rows.table, slim)
        for section in elements:
            table = self._contents.backend.table_of(section.elements.address)
            table.types.check_elements(section.spec, section.elements)
            if plain is not None:
                plain.check_elements(table, section.spec, section.elements)

    def _replace(self, stale: npt.NDArray[np.int64]) -> float:
        """Take note that entries have gone out of date; return how many bytes these take."""
        contents, ledger = self._contents, self._contents.ledger
        large = ledger.large
        for entry in stale.tolist() if contents.large_values else ():
            number = contents.forget_large(entry)
            if number is not None:
                self._store.remove(number)
        # Large values go at once; what the log may take shrinks by twice as much, so cleaning has to make up for it.
        return ledger.replace(stale) + large - ledger.large

    def _append(self, entries: Entries, removed: npt.NDArray[np.int64]) -> None:
        contents, chunk_bytes = self._contents, limits.CHUNK_BYTES
        # Entries that cleaning moves, and large ones, stay where they are.
        for index, entry in enumerate(entries.so_far()) if contents.large_values else ():
            if entry in contents.large_values:
                entries.large[index] = contents.large_values.pop(entry)
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
        self.put(chunk.number, payload)
        contents.head.newest = Mark.of(payload, self._epoch)
        for index, where in chunk.large.items():
            contents.large_values[contents.head.entry + index] = where
        chunk.size = len(payload)
        contents.add(chunk)

    def _chunk(self, entries: Entries, start: int, stop: int, removed: npt.NDArray[np.int64]) -> Chunk:
        """Return a chunk of some of the entries, which get the numbers of the next ones."""
        contents = self._contents
        stale = np.concatenate([entries.older[start:stop], removed])
        chunk = Chunk(
            replaced=contents.head.entry - stale[stale >= 0],
            epoch=self._epoch,
            before=contents.head.newest,
            number=contents.head.following,
            start=contents.head.entry,
            weights=entries.weights(start, stop),
            large={index - start: where for index, where in entries.large.items() if start <= index < stop},
        )
        entry = chunk.start
        for section, part in entries.parts(start, stop):
            section.put_into(chunk, part, entry)
            entry += part.stop - part.start
        for index in chunk.large:
            chunk.put(index, None)
        return chunk

    def _write_large(self, entries: Entries, index: int) -> tuple[int, Mark]:
        """Write a row or an element as a value of its own; return its number and its mark."""
        contents = self._contents
        section, place = entries.section_of(index)
        try:
            payload = section.dump(place, contents.dump)
        except Exception as error:
            raise self._unwritable(entries, index, index + 1, error) from error
        if len(payload) > limits.VALUE_BYTES:
            raise self._too_large(entries, index, len(payload))
        contents.head.large += 1
        self.put(-contents.head.large, payload)
        contents.ledger.large += len(payload)
        return -contents.head.large, Mark.of(payload, self._epoch)

    def _too_large(self, entries: Entries, index: int, size: int) -> OperatorError:
        """Return the error that names the state that Spark cannot take."""
        section, place = entries.section_of(index)
        values = section.values(slice(place, place + 1))
        address, spec, value = max(values, key=lambda each: len(self._contents.dump(each[2])))
        what = f"an element, {shorten(value[0])}, of " if isinstance(section, ElementSection) else ""
        return OperatorError(
            f"operator {self._contents.backend.operator!r}: {what}{spec.title} of"
            f" {format_owner(address)} cannot be written: it takes {size} bytes, and Spark takes no value of more than"
            f" {limits.VALUE_BYTES}: keep it in a map or list state, whose elements are written one by one, or"
            " under several keys"
        )

    def _unwritable(self, entries: Entries, start: int, stop: int, error: Exception) -> OperatorError:
        """Return the error that names the state that cannot be pickled."""
        operator = self._contents.backend.operator
        for address, spec, value in chain(*(section.values(part) for section, part in entries.parts(start, stop))):
            try:
                self._contents.dump((address[0] if is_namespaced(address) else address, value))
            except Exception as its:
                return OperatorError(
                    f"operator {operator!r}: {spec.title} of {format_owner(address)} {cannot_be_written(its)}"
                )
        # Each by itself can be written, now that it is tried again.
        return OperatorError(f"operator {operator!r}: the epoch's state cannot be written: {describe(error)}")


def cannot_be_written(error: Exception) -> str:
    """Return the rest of a message that says why a value cannot be written, and what to do."""
    if isinstance(error, ByValueError):
        if "not the same object as" in str(error):
            return (
                f"cannot be written: {error}; it was defined again after the stream was built: build the stream again"
                " from the present definitions"
            )
        return (
            f"cannot be written: {error}; after a restart it would be another class or function, which equals none of"
            " the program's: define it at the top level of a module, outside of all functions"
        )
    return (
        f"cannot be written: {describe(error)}; what cannot be pickled (connections, locks, generators) belongs into"
        " the function, made in open()"
    )
