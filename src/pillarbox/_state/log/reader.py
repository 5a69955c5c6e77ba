"""Reading a state log, all of it: that is a cold start.

Only the mailbox thread may do it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pillarbox._state.chunks.checks import check_rows
from pillarbox._state.chunks.chunk import Chunk, check_keys, read_large
from pillarbox._state.chunks.head import LogHead, cannot_become, damaged
from pillarbox._state.chunks.scan import scan
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import is_space
from pillarbox._state.log.contents import LogContents, filed
from pillarbox._state.log.evolution import Evolution
from pillarbox._state.log.layouts import DELETED
from pillarbox._state.log.many_objects import many_new_objects

__all__ = ["LogReader"]


class LogReader:
    """Reads from a store what its head knows of.

    Args:
        contents: what the task knows of its log so far: it is brought up to the head, and its backend with it.
        evolution: what becomes of the values; None: they are those of this program.
    """

    def __init__(
        self, contents: LogContents, store: ChunkStore, head: LogHead, evolution: Evolution | None = None
    ) -> None:
        self._contents = contents
        self._store = store
        self._head = head
        self._evolution = evolution
        self._allowed = contents.allowed if evolution is None else evolution.allowed

    def load(self) -> None:
        """Read all of it, into a backend that is empty.

        Raises:
            CheckpointMismatchError: it is other state, or not what was written.
        """
        head, contents, evolution = self._head, self._contents, self._evolution
        backend, identity, layouts = contents.backend, contents.identity, contents.layouts
        if layouts.take_over(head) and evolution is not None:
            evolution.note()
        backend.begin_loading(head.without_timers)
        with many_new_objects():
            loaded = 0
            for number, chunk, written, start, chosen in scan(self._store, head, identity, layouts.at, self._allowed):
                own = chunk.own(written.size)
                if chosen.any():
                    layouts.fit(chunk, number)
                    self._forget_deleted(chunk, chosen)
                contents.ledger.load(filed(number, start, chunk, own, chunk.keys), written.size, own, chosen)
                self._read_large(chunk, start, chosen)
                self._read_elements(chunk, start, chosen)
                # Outdated rows are freed now, and their memory is used for the next chunk, while it is in the cache.
                for rows, addresses, found in layouts.of_each_kind(chunk, chosen):
                    check_rows(found, number, identity)
                    if evolution is not None:
                        evolution.rows(rows, addresses, found, 1 if rows is backend else 2)
                    rows.load(addresses, found)
                    loaded += len(found)
                chunk.rows = []
                fields = {} if evolution is None else evolution.end_chunk()
                if fields:
                    numbers = [number, *(number for number, _ in chunk.large.values())]
                    check_keys(map(self._store.get, numbers), identity, layouts.at(number), fields)
            # (Operators may have made rows of namespaces before.)
            equal = loaded - backend.count_rows() - backend.spaces.count_rows()
            if equal > 0:
                raise cannot_become(
                    identity,
                    "the state of its keys",
                    f"of {loaded} rows, {equal} have keys now that equal those of others, and would be lost: keep the"
                    " fields of the key's class, and the way in which it compares",
                )
            wrong = contents.collections.load()
            if wrong is not None:
                raise damaged(identity, "the state", wrong)
            contents.ledger.end_loading()
            backend.end_loading()
            if evolution is not None and evolution.changes:
                contents.rewrite()
        contents.entries = head.entries
        contents.take_over(head)

    def _read_large(self, chunk: Chunk, start: int, current: npt.NDArray[np.bool_]) -> None:
        """Put the large rows and elements of a chunk, so far as they are current, into their places."""
        contents = self._contents
        for index, (number, mark) in chunk.large.items():
            if not current[index]:
                continue
            content = read_large(
                self._store, number, mark, contents.identity, self._allowed, of_row=index < len(chunk.keys)
            )
            contents.keep_large(start + index, number, mark)
            if index >= len(chunk.keys):
                chunk.put(index, content["element"])
                continue
            row = chunk.rows[index] = contents.layouts.fit_large(chunk, index, content)
            row[0] = start + index

    def _read_elements(self, chunk: Chunk, start: int, current: npt.NDArray[np.bool_]) -> None:
        """Take up the elements of a chunk, and how many its rows have, so far as they are current."""
        collections, evolution = self._contents.collections, self._evolution
        for index, counts in chunk.apart.items():
            if current[index]:
                collections.expect(chunk.keys[index], counts)
        at = len(chunk.keys)
        for found in chunk.elements:
            part = slice(at, at := at + len(found.values))
            chosen = current[part]
            if not chosen.any():
                continue
            entries = np.arange(start + part.start, start + part.stop)
            if evolution is None:
                collections.find(found, entries, chosen)
                continue
            spec, lead = collections.spec(found.address, found.slot), 1 + is_space(found.address)
            evolved = evolution.elements(spec, found.chosen(chosen), lead)
            collections.find(evolved, entries[chosen], np.ones(len(evolved.values), np.bool_))

    def _forget_deleted(self, chunk: Chunk, chosen: npt.NDArray[np.bool_]) -> None:
        """Count elements of states that are deleted for what is out of date."""
        at = len(chunk.keys)
        for found in chunk.elements:
            part = slice(at, at := at + len(found.values))
            if found.slot != DELETED:
                continue
            gone = [index for index in chunk.large if part.start <= index < part.stop and chosen[index]]
            self._contents.orphans += [chunk.large[index][0] for index in gone]
            chosen[part] = False
