"""The index of a state log, as the task that owns it knows it: its chunks, its entries, and the next numbers.

Reading sets it, and writing and cleaning start from it. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pillarbox._elements.buffers import dumps_by_name
from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import LogHead, LogIdentity, Mark
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log.large_collections import LargeCollections
from pillarbox._state.log.layouts import Layouts
from pillarbox._state.log.ledger import ChunkOnFile, Ledger
from pillarbox._state.log.plain_states import PlainStates
from pillarbox._state.types.class_names import ImportedNames
from pillarbox._unpickle import Allowed, loads_allowed


class LogContents:
    """What there is in a log.

    Attributes:
        identity: whose state it is.
        backend: the live rows.
        moved: the classes that have moved, by their former module and name.
        classes: what pickles get for names, where any may be named.
        plain: the types of keys and states; None: they are pickled, whatever they are.
        layouts: what the slots of rows hold, by chunk.
        ledger: the chunks.
        collections: the maps and lists whose elements are entries of their own.
        head: what the next head says of the log: how far it goes, and what its newest chunk is.
        large_values: where the large rows and elements lie, by their entries.
        scale: how many bytes were written for each one that was reckoned with beforehand.
        rewrites: whether the next epoch rewrites all of it, since it differs from what was written.
        orphans: the numbers of large elements of states that are deleted: they go then.
        dump: pickles what is written.
        classes_of_keys: the classes of which keys have to be, as in the checkpoint; empty: they may be of any.
    """

    def __init__(
        self, identity: LogIdentity, backend: KeyedStateBackend, moved: Mapping[tuple[str, str], type] | None = None
    ) -> None:
        self.identity = identity
        self.backend = backend
        self.moved: Mapping[tuple[str, str], type] = moved or {}
        self.classes: ImportedNames = ImportedNames(self.moved)
        self.plain: PlainStates | None = None
        self.layouts: Layouts = Layouts(backend)
        self.ledger: Ledger = Ledger()
        self.collections: LargeCollections = LargeCollections(backend)
        self.head: LogHead = LogHead(
            operator=identity.operator,
            parallelism=identity.parallelism,
            max_parallelism=identity.max_parallelism,
            subtask=identity.subtask,
            program=identity.program,
            key=identity.key,
            depends_on=identity.depends_on,
            codes=identity.codes or 0,
            layouts=[],
            version=0,
        )
        self.large_values: dict[int, tuple[int, Mark]] = {}
        self.scale: float = 1.0
        self.rewrites: bool = False
        self.orphans: list[int] = []
        self.classes_of_keys: tuple[type, ...] = ()
        self.dump: Callable[[Any], bytes] = dumps_by_name

    def take_over(self, head: LogHead) -> None:
        """Take what a head says of the log, when all that it knows of has been read."""
        mine = self.head
        self.head = replace(
            head, program=mine.program, key=mine.key, depends_on=mine.depends_on, codes=mine.codes, types={}
        )

    def written_head(self, stamp: tuple[int, int]) -> LogHead:
        """Return the head of the log as it is now, with the stamp of its last epoch."""
        chunks = self.ledger.chunks
        self.head = head = replace(self.head, stamps=[stamp], first=chunks[0].number if chunks else self.head.following)
        head.layouts = self.layouts.keys.written(head.first)
        head.space_layouts = self.layouts.namespaces.written(head.first)
        head.former = self.layouts.former
        head.without_timers = self.backend.without_timers()
        return head

    # -- chunks --

    def add(self, chunk: Chunk) -> None:
        """Take account of a new chunk."""
        self.ledger.add(chunk)
        self.head.entries += chunk.count
        self.head.entry += chunk.count
        self.head.following += 1

    def drop_oldest(self) -> ChunkOnFile:
        """Forget the oldest chunk."""
        oldest = self.ledger.drop_oldest()
        self.head.entries -= oldest.entries
        self.head.cleaned = 0
        return oldest

    # -- large rows and elements --

    def keep_large(self, entry: int, number: int, mark: Mark) -> None:
        """Take account of a row or an element that lies in a value of its own."""
        self.large_values[entry] = number, mark
        self.ledger.large += mark.size

    def forget_large(self, entry: int) -> int | None:
        """Forget the large value of an entry that is out of date; return its number, if it has one."""
        found = self.large_values.pop(entry, None)
        if found is None:
            return None
        number, mark = found
        self.ledger.large -= mark.size
        return number

    # -- rewriting --

    def rewrite(self) -> None:
        """Have the next epoch write all of it, and drop the earlier chunks."""
        self.rewrites = True
        self.backend.rewrite_all()
        self.collections.rewrite()

    # -- types --

    @property
    def allowed(self) -> Allowed:
        """What pickles of the state may name."""
        return self.classes if self.plain is None else self.plain.allowed

    def loads(self, payload: bytes) -> Any:
        """Unpickle a value that may name what the state may."""
        return loads_allowed(payload, self.allowed)
