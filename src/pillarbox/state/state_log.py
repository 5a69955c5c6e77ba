"""The state log: a subtask's state as a queue of chunks in a key-value store that commits with the epoch.

Each epoch appends the rows of the keys that it touched. The log is cleaned from its old end, as in a
log-structured file system: rows of the oldest chunk that are still current are appended again, then the chunk
is removed. So the log stays within about twice the live rows, no epoch pays for a full snapshot, and an epoch
costs what it touches. A resident task that missed epochs reads the chunks that it has not seen.

All entries of the log are numbered, and an entry names the one that it takes the place of. A cold start reads the
chunks from the newest to the oldest, so it knows of each entry whether it is out of date without a look at its key.

The store is Spark's state store under Spark, a dictionary elsewhere. Only the mailbox thread may touch the log.
"""

from __future__ import annotations

import gc
import logging
import pickle
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress
from typing import Any, Protocol

import numpy as np

from pillarbox.elements import dumps
from pillarbox.errors import CheckpointMismatchError, OperatorError, describe, shorten
from pillarbox.state.heap_backend import HeapKeyedStateBackend, SlotSpec, stale_entry
from pillarbox.state.key_note import KeyNote, key_change
from pillarbox.state.live_bytes import LiveBytes

__all__ = ["FORMAT", "ChunkStore", "LogIdentity", "MemoryChunkStore", "StateLog", "Sync"]

_log = logging.getLogger("pillarbox")

# Of the meta entry and the chunks. A newer one is refused, an older one is read.
FORMAT = 1
META = 0
_MAGIC = b"pillarbox"

_CHUNK_BYTES = 512 * 1024
_CHUNK_ROWS = 4096
# Epochs that touch few keys write small chunks. They are gathered when there are more than so many for each full chunk
# of live rows, and some to spare: that costs an epoch up to this part of a full chunk. Leaving them would cost a cold
# start its reads.
_GATHERING = 16
_SPARE_CHUNKS = 64
# Cleaning looks at this many keys before it asks again whether it has to go on.
_PORTION = 64
# From this number of new objects on, a cold start has the collector take them for old ones.
_MANY_OBJECTS = 100_000
# How many epochs back a resident task can prove that it is an ancestor of what the store holds.
_HISTORY = 64


class ChunkStore(Protocol):
    """Binary values by number, written together or not at all."""

    def get(self, number: int) -> bytes | None: ...

    def put(self, number: int, value: bytes) -> None: ...

    def remove(self, number: int) -> None: ...


class MemoryChunkStore:
    """A chunk store in a dictionary, with the number of bytes that were put into it."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self.bytes_put = 0

    def get(self, number: int) -> bytes | None:
        return self.chunks.get(number)

    def put(self, number: int, value: bytes) -> None:
        self.chunks[number] = value
        self.bytes_put += len(value)

    def remove(self, number: int) -> None:
        del self.chunks[number]

    def copy(self) -> MemoryChunkStore:
        """Give a store with the same chunks: a savepoint."""
        other = MemoryChunkStore()
        other.chunks = dict(self.chunks)
        return other


@dataclass(frozen=True)
class LogIdentity:
    """Whose state a log holds; a log of another one is refused.

    Attributes:
        operator: uid of the operator.
        program: uid, vertex number and level of all operators of the program that have state: where a store is found
            depends on these two.
        key: what is noted of the operator's key.
    """

    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int
    program: tuple[tuple[str, int, int], ...] = ()
    key: KeyNote | None = None


class Sync(Enum):
    """What it took to bring a resident task to the store's version."""

    IN_STEP = "in step"
    CAUGHT_UP = "caught up"
    LOADED = "loaded"
    DIVERGED = "diverged"


# Keys and their rows; keys that were removed; how far back the entries are that these take the place of.
_Chunk = tuple[list[Any], list[Any], list[Any], list[int]]


@dataclass
class _Meta:
    operator: str
    parallelism: int
    max_parallelism: int
    subtask: int
    # What the slots of a row hold, in the chunks from a number on: it changes when a program gets another state.
    layouts: list[tuple[int, list[tuple[str, str]]]]
    version: int
    stamps: list[tuple[int, int]]
    first: int
    following: int
    # Of the next entry, and how many there are in the log.
    entry: int
    entries: int
    program: tuple[tuple[str, int, int], ...]
    task_state: dict[str, Any] = field(default_factory=dict)
    cleaned: int = 0
    # Missing in logs of before: a default of the class stands in.
    key: KeyNote | None = None


class StateLog:
    """What a resident task knows of its log.

    Attributes:
        version: the number of epochs in the log; the next epoch is ``version + 1``.
        task_state: small state besides the keys' rows (watermarks, operators' own), written with every epoch.
        bytes_written: payload bytes put into the store by the last commit.
    """

    def __init__(self, identity: LogIdentity, backend: HeapKeyedStateBackend) -> None:
        self._identity = identity
        self._backend = backend
        self.bytes_written = 0
        self._chunk_rows = _CHUNK_ROWS
        self._forget()

    def _forget(self) -> None:
        self.version = 0
        self.task_state: dict[str, Any] = {}
        self._stamps: list[tuple[int, int]] = []
        # Keys of each chunk in the log, oldest first: what cleaning looks at.
        self._chunks: deque[tuple[int, list[Any]]] = deque()
        self._entries = 0
        # The number of the next entry: the first one in the log has the number `_entry - _entries`.
        self._entry = 0
        # How many keys of the oldest chunk cleaning has looked at already.
        self._cleaned = 0
        self._following = META + 1
        self._live = LiveBytes()
        self._layouts: list[tuple[int, list[tuple[str, str]]]] = []

    # -- reading --

    def sync(self, store: ChunkStore) -> Sync:
        """Bring the backend to the version in the store, by the cheapest way that is safe.

        Returns:
            ``DIVERGED`` when rows here come from an attempt that was not committed: then nothing was done, and
            the task must be made anew.

        Raises:
            CheckpointMismatchError: the store holds the state of something else.
        """
        meta = self._read_meta(store)
        stamp = meta.stamps[-1] if meta is not None and meta.stamps else None
        mine = self._stamps[-1] if self._stamps else None
        if mine == stamp:
            return Sync.IN_STEP
        if mine is None and meta is not None:
            self._check_key(meta)
            self._load(store, meta)
            return Sync.LOADED
        if meta is None or mine not in meta.stamps or meta.first > self._following:
            return Sync.DIVERGED
        self._catch_up(store, meta)
        return Sync.CAUGHT_UP

    def _read_meta(self, store: ChunkStore) -> _Meta | None:
        payload = store.get(META)
        if payload is None:
            return None
        if not payload.startswith(_MAGIC):
            raise CheckpointMismatchError(
                f"operator {self._identity.operator!r}: the state at hand was not written by pillarbox"
            )
        written = int.from_bytes(payload[len(_MAGIC) : len(_MAGIC) + 2], "little")
        if written > FORMAT:
            raise CheckpointMismatchError(
                f"operator {self._identity.operator!r}: the checkpoint has format {written}, this version of"
                f" pillarbox reads up to {FORMAT}: update pillarbox, or start from a new checkpoint"
            )
        meta: _Meta = pickle.loads(payload[len(_MAGIC) + 2 :])
        mine = self._identity
        if meta.operator != mine.operator:
            raise CheckpointMismatchError(
                f"the checkpoint holds state of operator {meta.operator!r} where the program has"
                f" {mine.operator!r}: set the operator's uid() to the one in the checkpoint, or start from a new one"
            )
        for what in ("parallelism", "max_parallelism", "subtask"):
            theirs, ours = getattr(meta, what), getattr(mine, what)
            if theirs != ours:
                raise CheckpointMismatchError(
                    f"operator {mine.operator!r}: the checkpoint was written with {what} {theirs}, the program"
                    f" runs with {ours}: keep it at {theirs}, or start from a new checkpoint"
                )
        places = {uid: place for uid, *place in mine.program}
        missing = sorted(uid for uid, *_ in meta.program if uid not in places)
        if missing:
            raise CheckpointMismatchError(
                f"the checkpoint holds state of {', '.join(map(repr, missing))}, which the program does not have: run"
                " the program that wrote it, set uid() of the operators to those in the checkpoint, or start anew"
            )
        moved = sorted(uid for uid, *place in meta.program if places[uid] != place)
        if moved:
            # Their state would not be found: they would start anew, in silence.
            raise CheckpointMismatchError(
                f"the checkpoint holds state of {', '.join(map(repr, moved))}, which the program has in another place:"
                " operators with state were added before it; run the program that wrote it, add operators behind the"
                " others, or start from a new checkpoint"
            )
        return meta

    def _check_key(self, meta: _Meta) -> None:
        """Refuse a key that is surely another one; of one that may be, the worker's log tells."""
        change = key_change(meta.key, self._identity.key)
        if change is None:
            return
        surely, what = change
        operator = f"operator {self._identity.operator!r}: {what}"
        if surely:
            raise CheckpointMismatchError(
                f"{operator}: old and new keys would mix in one state; key by what the checkpoint was written with, or"
                " start from a new one"
            )
        _log.warning("%s: if it gives other keys, they mix with those in the checkpoint", operator)

    def _load(self, store: ChunkStore, meta: _Meta) -> None:
        adopt = self._backend.adopt_slots
        layouts = [(start, adopt([SlotSpec(*slot) for slot in slots])) for start, slots in meta.layouts]
        current = np.ones(meta.entries, np.bool_)
        place = meta.entries
        # Millions of new, live objects: the cycle collector would only walk over them, again and again; and once more
        # for each generation that they pass, if freezing did not make them old at once. Garbage that is there grows old
        # with them, out of the collector's sight; so few objects, which are no burden, stay young.
        collecting = gc.isenabled()
        gc.disable()
        try:
            for number in reversed(range(meta.first, meta.following)):
                (keys, rows, removed, replaced), size = self._read_chunk(store, number)
                self._chunks.appendleft((number, keys + removed if removed else keys))
                entries = len(keys) + len(removed)
                place -= entries
                older = place - np.array(replaced, np.int64)
                current[older[older >= 0]] = False  # others are in chunks that are gone
                chosen = current[place : place + len(keys)].tolist()
                self._live.add(meta.entry - meta.entries + place, entries, sum(chosen), size, oldest=True)
                keys, rows = list(compress(keys, chosen)), list(compress(rows, chosen))
                while layouts[-1][0] > number:
                    layouts.pop()
                positions = layouts[-1][1]
                if positions is not None:
                    rows = [_rearranged(row, positions) for row in rows]
                self._backend.load(keys, rows)
            self._backend.end_loading()
        finally:
            if gc.get_count()[0] > _MANY_OBJECTS:
                gc.freeze()
                gc.unfreeze()
            if collecting:
                gc.enable()
        self._entries = meta.entries
        self._take_over(meta)

    def _catch_up(self, store: ChunkStore, meta: _Meta) -> None:
        for number in range(self._following, meta.following):
            (keys, rows, removed, replaced), size = self._read_chunk(store, number)
            self._live.remove([self._entry - back for back in replaced])
            self._live.add(self._entry, len(keys) + len(removed), len(keys), size)
            self._remember(number, keys + removed)
            self._backend.apply(keys, rows, removed)
        while self._chunks and self._chunks[0][0] < meta.first:
            self._entries -= len(self._chunks.popleft()[1])
        self._live.forget_before(self._entry - self._entries)
        self._take_over(meta)

    def _read_chunk(self, store: ChunkStore, number: int) -> tuple[_Chunk, int]:
        payload = store.get(number)
        if payload is None:
            raise CheckpointMismatchError(
                f"operator {self._identity.operator!r}: chunk {number} of the state is missing in the checkpoint"
            )
        chunk: _Chunk = pickle.loads(payload)
        return chunk, len(payload)

    def _take_over(self, meta: _Meta) -> None:
        self.version = meta.version
        self.task_state = meta.task_state
        self._stamps = meta.stamps
        self._following = meta.following
        self._entry = meta.entry
        self._layouts = meta.layouts
        self._cleaned = meta.cleaned

    def _remember(self, number: int, keys: list[Any]) -> None:
        self._chunks.append((number, keys))
        self._entries += len(keys)
        self._entry += len(keys)

    # -- writing --

    def commit(self, store: ChunkStore, task_state: dict[str, Any]) -> None:
        """Write what the epoch changed, and step to the next version."""
        self.bytes_written = 0
        changed, removed = self._backend.take_changes()
        slots = [(slot.name, slot.kind) for slot in self._backend.slots]
        if not self._layouts or self._layouts[-1][1] != slots:
            self._layouts = [*self._layouts, (self._following, slots)]
        self._clean(store, changed, len(removed))
        self._append(store, changed, removed)
        self._live.forget_before(self._entry - self._entries)
        self.version += 1
        self.task_state = task_state
        self._stamps = [*self._stamps[-_HISTORY + 1 :], (self.version, secrets.randbits(63))]
        mine = self._identity
        first = self._chunks[0][0] if self._chunks else self._following
        while len(self._layouts) > 1 and self._layouts[1][0] <= first:
            self._layouts = self._layouts[1:]
        meta = _Meta(
            mine.operator,
            mine.parallelism,
            mine.max_parallelism,
            mine.subtask,
            self._layouts,
            self.version,
            self._stamps,
            first,
            self._following,
            self._entry,
            self._entries,
            mine.program,
            task_state,
            self._cleaned,
            mine.key,
        )
        self._put(store, META, _MAGIC + FORMAT.to_bytes(2, "little") + dumps(meta))

    def _clean(self, store: ChunkStore, changed: dict[Any, list[Any]], removed: int) -> None:
        """Clean the old end as far as this epoch lengthens the log: rows still current join ``changed``.

        At least half of the entries of a log that is too long are out of date. So looking at two of them for each one
        that the epoch adds holds its length, and no epoch pays for another.
        """
        rows = self._backend.rows
        written = len(changed) + removed
        budget = 2 * written + self._chunk_rows // _GATHERING
        most_entries = 2 * len(rows) + _CHUNK_ROWS
        most_chunks = _SPARE_CHUNKS + _GATHERING * len(rows) // self._chunk_rows
        while budget > 0 and self._chunks:
            excess = self._entries - self._cleaned + len(changed) + removed - most_entries
            if excess <= 0 and len(self._chunks) <= most_chunks:
                break
            number, keys = self._chunks[0]
            portion = keys[self._cleaned : self._cleaned + min(budget, max(excess, _PORTION))]
            for entry, key in enumerate(portion, self._entry - self._entries + self._cleaned):
                row = rows.get(key)
                if row is not None and row[0] == entry:
                    changed[key] = row
            self._cleaned += len(portion)
            budget -= len(portion)
            if self._cleaned == len(keys):
                self._chunks.popleft()
                self._entries -= len(keys)
                self._cleaned = 0
                store.remove(number)

    def _append(self, store: ChunkStore, changed: dict[Any, list[Any]], gone: dict[Any, int]) -> None:
        every_key, every_row = list(changed), list(changed.values())
        # Rows that cleaning moves are unchanged: it is the entry of their mark that goes out of date.
        stale = [mark if mark >= 0 else stale_entry(mark) for mark in [row[0] for row in every_row]]
        removed, stale_removed = list(gone), list(gone.values())
        start = 0
        while start < len(every_key) or removed:
            keys = every_key[start : start + self._chunk_rows]
            chunk = every_row[start : start + self._chunk_rows]
            for entry, row in enumerate(chunk, self._entry):
                row[0] = entry
            entries = [*stale[start : start + len(keys)], *stale_removed]
            try:
                payload = dumps((keys, chunk, removed, [self._entry - entry for entry in entries if entry >= 0]))
            except Exception as error:
                raise self._unwritable(keys, chunk, error) from error
            if len(payload) > 4 * _CHUNK_BYTES and len(keys) > 1:
                self._chunk_rows = max(1, len(keys) * _CHUNK_BYTES // len(payload))
                continue
            self._put(store, self._following, payload)
            self._live.remove([entry for entry in entries if entry >= 0])
            self._live.add(self._entry, len(keys) + len(removed), len(keys), len(payload))
            self._remember(self._following, keys + removed)
            self._following += 1
            start += len(keys)
            removed, stale_removed = [], []
            if keys:
                wanted = len(keys) * _CHUNK_BYTES // len(payload)
                self._chunk_rows = min(max(1, wanted), _CHUNK_ROWS)

    def _unwritable(self, keys: list[Any], rows: list[list[Any]], error: Exception) -> OperatorError:
        """Return the error that names the state that cannot be pickled."""
        for key, row in zip(keys, rows):
            for slot, value in zip(self._backend.slots, row[1:]):
                try:
                    dumps((key, value))
                except Exception:
                    name = slot.name.partition("/")[2]
                    return OperatorError(
                        f"operator {self._backend.operator!r}: the {slot.kind} state {name!r} of key {shorten(key)}"
                        f" cannot be written: {describe(error)}; what cannot be pickled (connections, locks,"
                        " generators) belongs into the function, made in open()"
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
        """About how many bytes the current rows take when they are written."""
        return self._live.total

    @property
    def chunks(self) -> int:
        """The number of chunks in the log."""
        return len(self._chunks)


def _rearranged(row: list[Any], positions: Sequence[int]) -> list[Any]:
    return [row[0], *(row[position] if position else None for position in positions)]
