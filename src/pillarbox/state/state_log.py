"""The state log: a subtask's state as a queue of chunks in a key-value store that commits with the epoch.

Each epoch appends the rows of the keys that it touched. The log is cleaned from its old end, as in a
log-structured file system: rows of the oldest chunk that are still current are appended again, then the chunk
is removed. So the log stays within about twice the live rows, no epoch pays for a full snapshot, and an epoch
costs what it touches. A resident task that missed epochs reads the chunks that it has not seen. A row that would fill
a chunk has a value of its own beside the chunks, which is removed with its entry and never written again. The elements
of large maps and lists are entries of their own, so a change of one writes that one.

All entries of the log are numbered, and a chunk names those that its own take the place of. A cold start reads the
chunks from the newest to the oldest, so it knows of each entry whether it is out of date without a look at its key.
The head says what the newest chunk has to be, and each chunk what the one before it has to be: what is read is what was
written, or an error. What stands in the store is written down in docs/checkpoint-format.md.

Only the mailbox thread may touch the log.
"""

from __future__ import annotations

import gc
import secrets
from enum import Enum
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._unpickle import Allowed, MissingGlobalError, RefusedGlobalError, loads
from pillarbox.elements import dumps
from pillarbox.errors import OperatorError, describe
from pillarbox.state.addresses import is_space, said
from pillarbox.state.backend import LoggedStateBackend
from pillarbox.state.chunk_store import ChunkStore
from pillarbox.state.heap_rows import stale_entries
from pillarbox.state.large_collection import LargeCollection, Owner
from pillarbox.state.large_collections import LargeCollections, batch_of
from pillarbox.state.ledger import CLEANED, ChunkOnFile, Ledger
from pillarbox.state.log_chunk import Chunk, Entries, large_element, large_row, read_chunk, read_large
from pillarbox.state.log_head import (
    META,
    LogHead,
    LogIdentity,
    Mark,
    check_key,
    damaged,
    read_head,
    refused,
    unreadable,
    write_head,
)
from pillarbox.state.log_layouts import Layouts, as_written
from pillarbox.state.plain_states import PlainStates, reason_for_pickles
from pillarbox.state.sizes import sizes_of

__all__ = ["StateLog", "Sync"]

_CHUNK_BYTES = 512 * 1024
_CHUNK_ROWS = 4096
# The log may take this many bytes more than twice the current rows before it is cleaned. With what is left of chunks
# that are being cleaned, and with what is only estimated, it stays within 4 MiB.
_SLACK_BYTES = 1024 * 1024
# Epochs that touch few keys write small chunks. They are gathered when there are more than this many for each full
# chunk of live rows, and some to spare: that costs an epoch up to this part of a full chunk. Leaving them would cost a
# cold start its reads.
_GATHERING = 16
_SPARE_CHUNKS = 64
# From this number of new objects on, a cold start has the collector take them for old ones.
_MANY_OBJECTS = 100_000
# How many epochs back a resident task can prove that it is an ancestor of what the store holds.
_HISTORY = 64
# From this number of bytes on, the writes of an epoch show how exact the estimates of sizes were.
_CALIBRATING = 4096
# So many removed keys fit into a chunk: each takes a byte or two.
_MOST_REMOVED = 256 * 1024


class Sync(Enum):
    """The work that it took to bring a resident task to the store's version."""

    IN_STEP = "in step"
    CAUGHT_UP = "caught up"
    LOADED = "loaded"
    DIVERGED = "diverged"


class StateLog:
    """A resident task's view of its log.

    Attributes:
        version: the number of epochs in the log; the next epoch is ``version + 1``.
        task_state: small state besides the keys' rows (watermarks, operators' own), written with every epoch.
        bytes_written: payload bytes put into the store by the last commit.
    """

    def __init__(self, identity: LogIdentity, backend: LoggedStateBackend, *, own_state: bool = True) -> None:
        self._identity = identity
        self._backend = backend
        self._own_state = own_state
        self._plain: PlainStates | None = None
        # Slots whose values were written when the program did not declare these types.
        self._unchecked: set[str] = set()
        self.bytes_written: int = 0
        self.version: int = 0
        self.task_state: dict[str, Any] = {}
        self._stamps: list[tuple[int, int]] = []
        self._ledger = Ledger()
        self._collections = LargeCollections(backend)
        self._entries = 0
        # The number of the next entry: the first one in the log has the number `_entry - _entries`.
        self._entry = 0
        # How many keys of the oldest chunk cleaning has looked at already.
        self._cleaned = 0
        self._following = META + 1
        self._newest: Mark | None = None
        # Where the large rows and elements lie, by their entries; and how many have been written.
        self._large: dict[int, tuple[int, Mark]] = {}
        self._larges = 0
        self._layouts = Layouts(backend)
        # How many bytes were written for each one that was reckoned with beforehand.
        self._scale = 1.0

    # -- reading --

    def sync(self, store: ChunkStore) -> Sync:
        """Bring the backend to the version in the store, by the cheapest way that is safe.

        Returns:
            ``DIVERGED`` when rows here come from an attempt that was not committed: then nothing was done, and
            the task must be made anew.

        Raises:
            CheckpointMismatchError: the store holds other state, or not the bytes that were written.
        """
        if not self._stamps:
            self._plain = None if self.reason_for_pickles is not None else PlainStates(self._backend)
        payload = store.get(META)
        head = None if payload is None else read_head(payload, self._identity, self._load_pickle)
        stamp = head.stamps[-1] if head is not None and head.stamps else None
        mine = self._stamps[-1] if self._stamps else None
        if mine == stamp:
            return Sync.IN_STEP
        if mine is None and head is not None:
            check_key(head, self._identity)
            self._load(store, head)
            return Sync.LOADED
        if head is None or mine not in head.stamps or head.first > self._following:
            return Sync.DIVERGED
        self._catch_up(store, head)
        return Sync.CAUGHT_UP

    @property
    def reason_for_pickles(self) -> str | None:
        """Why the operator's state is pickled; None: it is plain, as the types say that the program declares."""
        if self._own_state:
            return "an operator behind it keeps records of its own, such as requests that are carried"
        return reason_for_pickles(self._identity.key, self._backend)

    def _load_pickle(self, payload: bytes) -> Any:
        return loads(payload) if self._plain is None else self._plain.loads(payload)

    def _load(self, store: ChunkStore, head: LogHead) -> None:
        self._layouts.take_over(head)
        if self._plain is not None:
            self._unchecked = {name for name, kind in self._plain.types.items() if head.types.get(name) != kind}
        current = np.ones(head.entries, np.bool_)
        place = head.entries
        oldest = head.entry - head.entries
        if store.get(head.following) is not None:
            raise damaged(self._identity, "the state", f"its head does not know of chunk {head.following}")
        # Millions of new, live objects: the cycle collector would only walk over them, again and again; and once more
        # for each generation that they pass, if freezing did not make them old at once. Garbage that is there grows old
        # with them, out of the collector's sight; so few objects, which are no burden, stay young.
        collecting = gc.isenabled()
        gc.disable()
        try:
            mark = head.newest
            newest: Mark | None = None
            for number in reversed(range(head.first, head.following)):
                chunk, written = self._read(store, number, mark)
                mark = chunk.before
                if newest is None:
                    newest = written
                place -= chunk.count
                if place < 0:
                    raise damaged(self._identity, "the state", f"it has more than its {head.entries} entries")
                older = place - chunk.replaced
                current[older[older >= 0]] = False  # others are in chunks that are gone
                chosen = current[place : place + chunk.current]
                own = chunk.own(written.size)
                self._layouts.fit(chunk, number)
                self._ledger.load(self._filed(number, oldest + place, chunk, own), written.size, own, chosen)
                self._read_large(store, chunk, oldest + place, chosen)
                self._read_elements(chunk, oldest + place, chosen)
                # Outdated rows are freed now, and their memory is used for the next chunk, while it is in the cache.
                for rows, addresses, found in self._layouts.of_each_kind(chunk, chosen):
                    if self._plain is not None and self._unchecked:
                        self._plain.check(addresses, found, self._unchecked)
                    rows.load(addresses, found)
                chunk.rows = []
            if place:
                raise damaged(self._identity, "the state", f"{place} of its {head.entries} entries are missing")
            self._unchecked = set()
            wrong = self._collections.load()
            if wrong is not None:
                raise damaged(self._identity, "the state", wrong)
            self._ledger.end_loading()
            self._backend.end_loading()
        finally:
            if gc.get_count()[0] > _MANY_OBJECTS:
                gc.freeze()
                gc.unfreeze()
            if collecting:
                gc.enable()
        self._entries = head.entries
        self._take_over(head)
        self._newest = newest

    def _catch_up(self, store: ChunkStore, head: LogHead) -> None:
        chunks: list[tuple[int, Chunk, Mark]] = []
        mark = head.newest
        self._layouts.take_over(head)
        for number in reversed(range(self._following, head.following)):
            chunk, written = self._read(store, number, mark)
            mark = chunk.before
            chunks.append((number, chunk, written))
        if mark is not None and chunks and self._newest is not None and mark != self._newest:
            raise damaged(self._identity, f"chunk {self._following} of the state", "it is another log's")
        start = self._entry
        current = np.ones(sum(chunk.count for _, chunk, _ in chunks), np.bool_)
        replaced: list[tuple[int, Owner]] = []
        at = 0
        for _, chunk, _ in reversed(chunks):
            older = at - chunk.replaced
            current[older[older >= 0]] = False
            replaced += self._ledger.owners_of(start + older[older < 0])
            at += chunk.count
        for entry, _ in replaced if self._large else ():
            self._forget_large(entry)
        applied: list[Any] = []
        for number, chunk, written in reversed(chunks):
            self._ledger.replace(self._entry - chunk.replaced)
            at = self._entry - start
            chosen = current[at : at + chunk.current]
            self._layouts.fit(chunk, number)
            self._read_large(store, chunk, self._entry, chosen)
            self._read_elements(chunk, self._entry, chosen)
            own = chunk.own(written.size)
            self._remember(self._filed(number, self._entry, chunk, own), written.size, chunk.current, own)
            for rows, addresses, found in self._layouts.of_each_kind(chunk, chosen):
                rows.apply(addresses, found, [])
                applied += addresses
            self._backend.apply([], [], chunk.removed)
        # Entries that were replaced, and not written anew, are gone.
        find = self._backend.find
        gone = [
            address
            for entry, (address, slot, _) in replaced
            if not slot and (row := find(address)) is not None and row[0] == entry
        ]
        self._backend.apply([], [], [address for address in gone if not is_space(address)])
        self._backend.spaces.apply([], [], [address for address in gone if is_space(address)])
        for address in gone:
            self._collections.remove(address)
        wrong = self._collections.merge(applied, [each for each in replaced if each[1].slot])
        if wrong is not None:
            raise damaged(self._identity, "the state", wrong)
        while self._ledger.chunks and self._ledger.chunks[0].number < head.first:
            self._entries -= self._ledger.drop_oldest().entries
        self._take_over(head)

    def _read(self, store: ChunkStore, number: int, mark: Mark | None) -> tuple[Chunk, Mark]:
        return read_chunk(store, number, mark, self._identity, self._layouts.at(number), self._allowed)

    @property
    def _allowed(self) -> Allowed | None:
        return None if self._plain is None else self._plain.allowed

    def _read_large(self, store: ChunkStore, chunk: Chunk, start: int, current: npt.NDArray[np.bool_]) -> None:
        """Put the large rows and elements of a chunk, so far as they are current, into their places."""
        for index, (number, mark) in chunk.large.items():
            if not current[index]:
                continue
            content = read_large(store, number, mark, self._identity, self._allowed)
            self._keep_large(start + index, number, mark)
            if index >= len(chunk.keys):
                chunk.put(index, content["element"])
                continue
            row = chunk.rows[index] = self._layouts.fit_large(chunk, index, content)
            row[0] = start + index

    def _read_elements(self, chunk: Chunk, start: int, current: npt.NDArray[np.bool_]) -> None:
        """Take up the elements of a chunk, and how many its rows have, so far as they are current."""
        for index, counts in chunk.apart.items():
            if current[index]:
                self._collections.expect(chunk.keys[index], counts)
        at = len(chunk.keys)
        for found in chunk.elements:
            part = slice(at, at := at + len(found.values))
            if self._plain is not None and self._unchecked:
                spec = self._collections.spec(found.address, found.slot)
                self._plain.check_elements(spec, found.chosen(current[part]))
            self._collections.find(found, np.arange(start + part.start, start + part.stop), current[part])

    @staticmethod
    def _filed(number: int, start: int, chunk: Chunk, own: float) -> ChunkOnFile:
        elements = [(found.address, found.slot, found.names()) for found in chunk.elements]
        return ChunkOnFile(number, start, chunk.keys + chunk.removed, elements, chunk.count, chunk.sizes(own))

    def _keep_large(self, entry: int, number: int, mark: Mark) -> None:
        self._large[entry] = number, mark
        self._ledger.large += mark.size

    def _forget_large(self, entry: int) -> int | None:
        """Forget the large value of an entry that is out of date; return its number, if it has one."""
        found = self._large.pop(entry, None)
        if found is None:
            return None
        number, mark = found
        self._ledger.large -= mark.size
        return number

    def _take_over(self, head: LogHead) -> None:
        try:
            self.task_state = self._load_pickle(head.task) if head.task else {}
        except MissingGlobalError as error:
            raise unreadable(self._identity, "records that an operator had not finished", error) from error
        except RefusedGlobalError as error:
            raise refused(self._identity, "records that an operator had not finished", error) from error
        self.version = head.version
        self._stamps = head.stamps
        self._following = head.following
        self._entry = head.entry
        self._cleaned = head.cleaned
        self._newest = head.newest
        self._larges = head.large

    def _remember(self, chunk: ChunkOnFile, size: int, current: int, own: float) -> None:
        self._ledger.add(chunk, size, current, own)
        self._entries += chunk.entries
        self._entry += chunk.entries

    # -- writing --

    def commit(self, store: ChunkStore, task_state: dict[str, Any]) -> None:
        """Write the epoch's changes, and step to the next version."""
        self.bytes_written = 0
        changed, removed = self._backend.take_changes()
        self._layouts.note(self._following)
        self._write_changes(store, changed, removed)
        self.version += 1
        self.task_state = task_state
        self._stamps = [*self._stamps[-_HISTORY + 1 :], (self.version, secrets.randbits(63))]
        mine, chunks = self._identity, self._ledger.chunks
        first = chunks[0].number if chunks else self._following
        head = LogHead(
            operator=mine.operator,
            parallelism=mine.parallelism,
            max_parallelism=mine.max_parallelism,
            subtask=mine.subtask,
            program=mine.program,
            key=mine.key,
            layouts=self._layouts.keys.written(first),
            space_layouts=self._layouts.spaces.written(first),
            codes=0 if mine.codes in (None, 1) else mine.codes,
            version=self.version,
            stamps=self._stamps,
            first=first,
            following=self._following,
            entry=self._entry,
            entries=self._entries,
            cleaned=self._cleaned,
            newest=self._newest,
            large=self._larges,
            task=dumps(task_state),
            types={} if self._plain is None else self._plain.types,
        )
        self._put(store, META, write_head(head))

    def _write_changes(self, store: ChunkStore, changed: dict[Any, list[Any]], removed: dict[Any, int]) -> None:
        """Append what the epoch changed, and what cleaning moves; note what is out of date by that."""
        collections, scale = self._collections, self._scale
        elements_gone, batches = collections.take_changes(changed, removed, scale)
        sizes = self._sizes_of(changed)
        for index, address, grown in collections.grow(changed, sizes, scale):
            batches += grown
            sizes[index : index + 1] = self._sizes_of({address: changed[address]})
        if self._plain is not None:
            self._plain.check(changed, collections.slim(changed, changed.values()))
            for batch in batches:
                spec = collections.spec(batch.elements.address, batch.elements.slot)
                self._plain.check_elements(spec, batch.elements)
        older = stale_entries([row[0] for row in changed.values()])
        gone = np.array([*removed.values(), *elements_gone], np.int64)
        stale = np.concatenate([older, gone, *(batch.older for batch in batches)])
        stale = stale[stale >= 0]
        large = self._ledger.large
        for entry in stale.tolist() if self._large else ():
            number = self._forget_large(entry)
            if number is not None:
                store.remove(number)
        # Large values go at once; what the log may take shrinks by twice as much, so cleaning has to make up for it.
        bytes_gone = self._ledger.replace(stale) + large - self._ledger.large
        added = float(sizes.sum()) + sum(float(batch.sizes.sum()) for batch in batches)
        moved, elements = self._clean(store, added, bytes_gone)
        if moved:
            # These are unchanged: it is the entry of their mark that goes out of date.
            entries = np.array([row[0] for row in moved.values()], np.int64)
            self._ledger.replace(entries)
            older = np.concatenate([older, entries])
            sizes = np.concatenate([sizes, self._sizes_of(moved)])
            changed.update(moved)
        for collection, places in elements.items():
            order = collection.in_order(places)
            batches.append(batch_of(collection, order, [collection.entries[place] for place in order], scale))
            self._ledger.replace(batches[-1].older)
        self._append(store, Entries(changed, older, sizes, batches, spaces=bool(self._backend.spaces.slots)), gone)

    def _sizes_of(self, rows: dict[Any, list[Any]]) -> npt.NDArray[np.float64]:
        """Return about how many bytes each row takes in the log."""
        slim = self._collections.slim(rows, rows.values())
        if not self._backend.spaces.slots:
            return sizes_of(list(rows), slim) * self._scale
        sizes = np.zeros(len(rows))
        of_spaces = np.fromiter(map(is_space, rows), np.bool_, len(rows))
        for spaces in (False, True):
            chosen = (of_spaces == spaces).tolist()
            keys, found = list(compress(rows, chosen)), list(compress(slim, chosen))
            if spaces:
                keys, found = [key for key, *_ in keys], [[row[1][1], *row[2:]] for row in found]
            sizes[of_spaces == spaces] = sizes_of(keys, found)
        return sizes * self._scale

    def _clean(
        self, store: ChunkStore, added: float, gone: float
    ) -> tuple[dict[Any, list[Any]], dict[LargeCollection, list[int]]]:
        """Clean the old end as far as this epoch lengthens the log, and return what is still current there.

        What is written again is bounded by what the epoch changes, so no epoch pays for another.

        Args:
            added: how many bytes of rows and elements the epoch adds.
            gone: how many bytes it puts out of date.

        Returns:
            rows by address, and places of elements by their maps and lists.
        """
        rows, find, ledger = self._backend.rows, self._backend.find, self._ledger
        spaces = bool(self._backend.spaces.slots)
        moved: dict[Any, list[Any]] = {}
        elements: dict[LargeCollection, list[int]] = {}
        changes = max(added, gone)
        # Also what is not written again takes its time to look at.
        looks = 3 * changes + _CHUNK_BYTES // _GATHERING
        full = max(ledger.current // _CHUNK_ROWS, ledger.live_bytes // _CHUNK_BYTES)
        most_chunks = _SPARE_CHUNKS + _GATHERING * full
        # A little at a time as long as the log is hardly too long: epochs take about the same time.
        excess = ledger.excess(added, self._cleaned) - _SLACK_BYTES
        budget = min((1 + CLEANED) * changes - added, changes / 2 + max(0.0, excess))
        if len(ledger.chunks) > most_chunks:
            budget += _CHUNK_BYTES // _GATHERING
        while ledger.chunks and (len(ledger.chunks) > most_chunks or excess > 0):
            oldest = ledger.chunks[0]
            look = ledger.mean_of_oldest()
            for address, slot, name in () if ledger.oldest_is_stale() else oldest.owners(self._cleaned):
                if budget <= 0 or looks <= 0:
                    return moved, elements
                looks -= look
                entry = oldest.start + self._cleaned
                self._cleaned += 1
                if not slot:
                    row = rows.get(address)
                    if row is None and spaces:
                        row = find(address)
                    if row is None or row[0] != entry:
                        continue
                    moved[address] = row
                else:
                    collection = self._collections.get(address, slot)
                    place = None if collection is None else collection.place_of(name, entry)
                    if collection is None or place is None:
                        continue
                    elements.setdefault(collection, []).append(place)
                size = ledger.size_of(entry)
                budget -= size
                added += size
            ledger.drop_oldest()
            self._entries -= oldest.entries
            self._cleaned = 0
            store.remove(oldest.number)
            excess = ledger.excess(added, self._cleaned) - _SLACK_BYTES
        return moved, elements

    def _append(self, store: ChunkStore, entries: Entries, removed: npt.NDArray[np.int64]) -> None:
        # Entries that cleaning moves, and large ones, stay where they are.
        for index, entry in enumerate(entries.so_far()) if self._large else ():
            if entry in self._large:
                entries.large[index] = self._large.pop(entry)
        for index in np.flatnonzero(entries.sizes > _CHUNK_BYTES).tolist():
            if index not in entries.large:
                entries.large[index] = self._write_large(store, entries, index)
        ends = np.cumsum(entries.shares())
        before = self.bytes_written
        start = 0
        while start < len(entries):
            filled = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + _CHUNK_BYTES, "right"))
            stop = min(max(filled, start + 1), start + _CHUNK_ROWS, len(entries))
            last = removed if stop == len(entries) else removed[:0]
            self._write_chunk(store, entries, start, stop, last[:_MOST_REMOVED])
            start = stop
        for rest in range(_MOST_REMOVED if start else 0, len(removed), _MOST_REMOVED):
            self._write_chunk(store, entries, start, start, removed[rest : rest + _MOST_REMOVED])
        written = self.bytes_written - before
        if written >= _CALIBRATING and start:
            self._scale = min(max(written / float(entries.sizes.sum()) * self._scale, 0.25), 4.0)

    def _write_chunk(
        self, store: ChunkStore, entries: Entries, start: int, stop: int, removed: npt.NDArray[np.int64]
    ) -> None:
        keys, rows = entries.keys[start:stop], entries.rows[start:stop]
        for entry, row in enumerate(rows, self._entry):
            row[0] = entry
        at = self._entry + len(rows)
        elements = []
        for collection, places, found in entries.elements(start, stop):
            for entry, place in enumerate(places, at):
                collection.entries[place] = entry
            at += len(places)
            elements.append(found)
        stale = np.concatenate([entries.stale[start:stop], removed])
        own = min(max(entries.own_keys - start, 0), len(keys))
        rows = self._collections.slim(keys, rows)
        chunk = Chunk(
            keys,
            rows[:own] + list(map(as_written, rows[own:])),
            self._entry - stale[stale >= 0],
            self.version + 1,
            self._newest,
            entries.weights(start, stop),
            {index - start: where for index, where in entries.large.items() if start <= index < stop},
            spaces=len(keys) - own,
            elements=elements,
            apart=self._collections.apart(keys),
        )
        for index in chunk.large:
            chunk.put(index, None)
        try:
            payload = chunk.encode()
        except Exception as error:
            raise self._unwritable(entries, start, stop, error) from error
        if len(payload) > 4 * _CHUNK_BYTES and stop > start and not (chunk.large and stop - start == 1):
            # Values with objects whose size does not show.
            if stop - start > 1:
                middle = (start + stop) // 2
                self._write_chunk(store, entries, start, middle, removed[:0])
                self._write_chunk(store, entries, middle, stop, removed)
            else:
                entries.large[start] = self._write_large(store, entries, start)
                self._write_chunk(store, entries, start, stop, removed)
            return
        self._put(store, self._following, payload)
        self._newest = Mark.of(payload, self.version + 1)
        for index, (number, mark) in chunk.large.items():
            self._large[self._entry + index] = number, mark
        own_bytes = chunk.own(len(payload))
        filed = self._filed(self._following, self._entry, chunk, own_bytes)
        self._remember(filed, len(payload), chunk.current, own_bytes)
        self._following += 1

    def _write_large(self, store: ChunkStore, entries: Entries, index: int) -> tuple[int, Mark]:
        """Write a row or an element as a value of its own; return its number and its mark."""
        try:
            if index < len(entries.rows):
                of_space = is_space(entries.keys[index])
                layout = self._layouts.newest(of_space=of_space)
                (row,) = self._collections.slim([entries.keys[index]], [entries.rows[index]])
                payload = large_row(layout, as_written(row) if of_space else row)
            else:
                ((_, _, found),) = entries.elements(index, index + 1)
                payload = large_element(found.values[0])
        except Exception as error:
            raise self._unwritable(entries, index, index + 1, error) from error
        self._larges += 1
        self._put(store, -self._larges, payload)
        self._ledger.large += len(payload)
        return -self._larges, Mark.of(payload, self.version + 1)

    def _unwritable(self, entries: Entries, start: int, stop: int, error: Exception) -> OperatorError:
        """Return the error that names the state that cannot be pickled."""
        addresses = entries.keys[start:stop]
        parts: list[tuple[Any, int, Any]] = []
        for address, row in zip(addresses, self._collections.slim(addresses, entries.rows[start:stop])):
            lead = 1 + is_space(address)
            parts += [(address, slot, value) for slot, value in enumerate(row[lead:], lead)]
        for _, _, found in entries.elements(start, stop):
            parts += [(found.address, found.slot, element) for element in zip(found.names(), found.values)]
        for address, slot, value in parts:
            try:
                dumps((address[0] if is_space(address) else address, value))
            except Exception:
                name, kind = self._collections.spec(address, slot)
                return OperatorError(
                    f"operator {self._backend.operator!r}: the {kind} state {name.partition('/')[2]!r} of key"
                    f" {said(address)} cannot be written: {describe(error)}; what cannot be pickled (connections,"
                    " locks, generators) belongs into the function, made in open()"
                )
        # Each by itself can be written, now that it is tried again.
        return OperatorError(
            f"operator {self._backend.operator!r}: the epoch's state cannot be written: {describe(error)}"
        )

    def _put(self, store: ChunkStore, number: int, payload: bytes) -> None:
        store.put(number, payload)
        self.bytes_written += len(payload)

    @property
    def state_bytes(self) -> int:
        """About how many bytes the state takes when it is written."""
        return self._ledger.live_bytes

    @property
    def chunks(self) -> int:
        """The number of chunks in the log."""
        return len(self._ledger.chunks)
