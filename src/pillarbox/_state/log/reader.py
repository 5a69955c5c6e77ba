"""Reading a state log, all of it: that is a cold start.

Only the mailbox thread may do it.
"""

from __future__ import annotations

from functools import partial

from pillarbox._state.chunks.checks import check_rows
from pillarbox._state.chunks.chunk import Chunk, check_keys, read_large
from pillarbox._state.chunks.head import LogHead, cannot_become, damaged
from pillarbox._state.chunks.scan import scan
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.evolution import Evolution
from pillarbox._state.log.layouts import DELETED, with_addresses
from pillarbox._state.log.many_objects import collector_paused


class LogReader:
    """Reads from a store what its head knows of.

    Args:
        contents: what the task knows of its log so far: it is brought up to the head, and its backend with it.
        evolution: what becomes of the values.
    """

    def __init__(self, contents: LogContents, store: ChunkStore, head: LogHead, evolution: Evolution) -> None:
        self._contents = contents
        self._store = store
        self._head = head
        self._evolution = evolution

    def load(self) -> None:
        """Read all of it, into a backend that is empty.

        Raises:
            CheckpointMismatchError: it is other state, or not what was written.
        """
        head, contents, evolution = self._head, self._contents, self._evolution
        backend, identity, layouts = contents.backend, contents.identity, contents.layouts
        if layouts.take_over(head):
            evolution.note()
        backend.begin_loading(head.without_timers)
        with collector_paused():
            loaded = 0
            for chunk in scan(self._store, head, identity, layouts.at, evolution.allowed):
                if chunk.current.any():
                    layouts.fit(chunk)
                    self._forget_deleted(chunk)
                contents.ledger.load(chunk)
                fit = partial(layouts.fit_large, chunk)
                for index, number, mark in read_large(chunk, self._store, identity, evolution.allowed, fit):
                    contents.keep_large(chunk.start + index, number, mark)
                self._read_elements(chunk)
                # Outdated rows are freed now, and their memory is used for the next chunk, while it is in the cache.
                for table, addresses, rows in layouts.current_rows(chunk):
                    check_rows(rows, chunk.number, identity)
                    with_addresses(rows, addresses)
                    evolution.rows(table, rows)
                    table.load(addresses, rows)
                    loaded += len(rows)
                chunk.rows = []
                fields = evolution.end_chunk()
                if fields:
                    numbers = [chunk.number, *(number for number, _ in chunk.large.values())]
                    check_keys(map(self._store.get, numbers), identity, layouts.at(chunk.number), fields)
            # (Operators may have made rows of namespaces before.)
            equal = loaded - sum(table.count_rows() for table in backend.tables)
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
            if evolution.changes:
                contents.rewrite()
        contents.take_over(head)

    def _read_elements(self, chunk: Chunk) -> None:
        """Take up the elements of a chunk, and how many its rows have, so far as they are current."""
        collections = self._contents.collections
        for index, counts in chunk.apart.items():
            if chunk.current[index]:
                collections.expect(chunk.keys[index], counts)
        for found, entries in chunk.current_elements():
            table = self._contents.backend.table_of(found.address)
            collections.find(self._evolution.elements(table, found), entries)

    def _forget_deleted(self, chunk: Chunk) -> None:
        """Count elements of states that are deleted for what is out of date."""
        for found, part in chunk.element_parts():
            if found.slot == DELETED:
                large = [index for index in chunk.large if part.start <= index < part.stop and chunk.current[index]]
                self._contents.orphans += [chunk.large[index][0] for index in large]
                chunk.current[part] = False
