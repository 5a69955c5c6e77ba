"""The content of a state log, as the task that owns it knows it: its chunks and entries, and what the next ones are.

Reading sets it, writing and cleaning go on from it. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import dumps_by_name
from pillarbox._state.backend import LoggedStateBackend
from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import META, LogHead, LogIdentity, Mark
from pillarbox._state.chunks.large_collections import LargeCollections
from pillarbox._state.log.layouts import Layouts
from pillarbox._state.log.ledger import ChunkOnFile, Ledger, addresses_of
from pillarbox._state.log.plain_states import PlainStates
from pillarbox._state.types.class_names import Classes
from pillarbox._unpickle import Allowed, loads_allowed

__all__ = ["LogContents", "filed"]


class LogContents:
    """What there is in a log.

    Attributes:
        identity: whose state it is.
        backend: the live rows.
        moved: the classes that have moved, by module and name of before.
        classes: what pickles get for names, where any may be named.
        plain: the types of keys and states; None: they are pickled, whatever they are.
        layouts: what the slots of rows hold, by chunk.
        ledger: the chunks.
        collections: the maps and lists whose elements are entries of their own.
        entries: the number of entries.
        entry: the number of the next entry: the first one in the log has the number ``entry - entries``.
        cleaned: how many entries of the oldest chunk cleaning has looked at already.
        following: the number of the next chunk.
        newest: size and digest of the newest chunk; None where there is none.
        large: where the large rows and elements lie, by their entries.
        larges: how many of these have ever been written.
        scale: how many bytes were written for each one that was reckoned with beforehand.
        rewrites: whether the next epoch writes all of it anew, since it has become other than it was written.
        orphans: the numbers of large elements of states that are deleted: they go then.
        dump: pickles what is written.
        classes_of_keys: the classes of which keys have to be, as in the checkpoint; empty: they may be of any.
    """

    def __init__(
        self, identity: LogIdentity, backend: LoggedStateBackend, moved: Mapping[tuple[str, str], type] | None = None
    ) -> None:
        self.identity = identity
        self.backend = backend
        self.moved: Mapping[tuple[str, str], type] = moved or {}
        self.classes: Classes = Classes(self.moved)
        self.plain: PlainStates | None = None
        self.layouts: Layouts = Layouts(backend)
        self.ledger: Ledger = Ledger()
        self.collections: LargeCollections = LargeCollections(backend)
        self.entries: int = 0
        self.entry: int = 0
        self.cleaned: int = 0
        self.following: int = META + 1
        self.newest: Mark | None = None
        self.large: dict[int, tuple[int, Mark]] = {}
        self.larges: int = 0
        self.scale: float = 1.0
        self.rewrites: bool = False
        self.orphans: list[int] = []
        self.classes_of_keys: tuple[type, ...] = ()
        self.dump: Callable[[Any], bytes] = dumps_by_name

    def take_over(self, head: LogHead) -> None:
        """Take the numbers that a head says, when all that it knows of has been read."""
        self.following = head.following
        self.entry = head.entry
        self.cleaned = head.cleaned
        self.newest = head.newest
        self.larges = head.large

    # -- chunks --

    def add(self, number: int, chunk: Chunk, size: int) -> None:
        """Take account of a new chunk, which takes ``size`` bytes."""
        own = chunk.own(size)
        self.ledger.add(filed(number, self.entry, chunk, own, addresses_of(chunk.keys)), size, chunk.count, own)
        self.entries += chunk.count
        self.entry += chunk.count

    def drop_oldest(self) -> ChunkOnFile:
        """Forget the oldest chunk."""
        oldest = self.ledger.drop_oldest()
        self.entries -= oldest.entries
        self.cleaned = 0
        return oldest

    # -- large rows and elements --

    def keep_large(self, entry: int, number: int, mark: Mark) -> None:
        """Take account of a row or an element that lies in a value of its own."""
        self.large[entry] = number, mark
        self.ledger.large += mark.size

    def forget_large(self, entry: int) -> int | None:
        """Forget the large value of an entry that is out of date; return its number, if it has one."""
        found = self.large.pop(entry, None)
        if found is None:
            return None
        number, mark = found
        self.ledger.large -= mark.size
        return number

    # -- writing anew --

    def rewrite(self) -> None:
        """Have the next epoch write all of it, and drop the chunks of before."""
        self.rewrites = True
        self.backend.rewrite()
        self.collections.rewrite()

    # -- types --

    @property
    def allowed(self) -> Allowed:
        """What pickles of the state may name."""
        return self.classes if self.plain is None else self.plain.allowed

    def loads(self, payload: bytes) -> Any:
        """Unpickle a value that may name what the state may."""
        return loads_allowed(payload, self.allowed)


def filed(number: int, start: int, chunk: Chunk, own: float, rows: npt.NDArray[np.object_] | list[Any]) -> ChunkOnFile:
    """Return what the ledger keeps of a chunk whose entries take ``own`` bytes, with the addresses of its rows."""
    elements = [(found.address, found.slot, found.names()) for found in chunk.elements]
    return ChunkOnFile(number, start, rows, elements, chunk.count, chunk.sizes(own))
