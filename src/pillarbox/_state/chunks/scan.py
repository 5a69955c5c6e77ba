"""The chunks of a state log, from the newest to the oldest, and which of their entries are current.

All entries of the log are numbered, and a chunk names those that its own take the place of. So whoever reads the
chunks from the newest on knows of each entry whether it is out of date without a look at its key. The head says what
the newest chunk has to be, and each chunk what the one before it has to be: what is read is what was written, or an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pillarbox._state.chunks.checks import check_chunk
from pillarbox._state.chunks.chunk import Chunk, read_chunk
from pillarbox._state.chunks.head import Layout, LogHead, LogIdentity, damaged
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._unpickle import Allowed


def scan(
    store: ChunkStore,
    head: LogHead,
    identity: LogIdentity,
    layouts: Callable[[int], tuple[Layout, Layout]],
    allowed: Allowed,
) -> Iterator[Chunk]:
    """Return all chunks that a head knows of, the newest first, with what of them is current.

    Args:
        layouts: what the slots of rows of keys and of namespaces hold in the chunk of a number.
        allowed: what chunks may name.

    Raises:
        CheckpointMismatchError: one is missing, or is not what was written; or something in it cannot be read.
    """
    if store.get(head.following) is not None:
        raise damaged(identity, "the state", f"its head does not know of chunk {head.following}")
    current = np.ones(head.entries, np.bool_)
    place = head.entries
    oldest = head.entry - head.entries
    mark = head.newest
    for number in reversed(range(head.first, head.following)):
        if mark is None:
            raise damaged(identity, f"chunk {number} of the state", "nothing says what it has to be")
        written = mark
        chunk = read_chunk(store, number, mark, identity, layouts(number), allowed)
        mark = chunk.before
        place -= chunk.count
        if place < 0:
            raise damaged(identity, "the state", f"it has more than its {head.entries} entries")
        chunk.start = oldest + place
        check_chunk(chunk, written, layouts(number), identity)
        # (They are sorted; those that reach further back are in chunks that are gone.)
        older = place - chunk.replaced[: np.searchsorted(chunk.replaced, place, "right")]
        if not current[older].all():
            raise damaged(identity, f"chunk {number} of the state", "it takes the place of what another one does")
        current[older] = False
        chunk.current = current[place : place + chunk.count]
        yield chunk
    if place:
        raise damaged(identity, "the state", f"{place} of its {head.entries} entries are missing")
