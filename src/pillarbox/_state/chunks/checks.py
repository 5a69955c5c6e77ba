"""What a chunk that was read has to be: all that whoever writes one sees to.

Its digest says that it is what was written, and not that what was written is a chunk of this log. A row that says
another number than its entry's, or a list that is too short, would be wrong state in silence, or an error far away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from pillarbox._errors import describe
from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import Layout, LogIdentity, Mark, damaged
from pillarbox._state.chunks.large_collection import Elements
from pillarbox._state.keys.addresses import is_namespaced, is_plain


def check_chunk(chunk: Chunk, mark: Mark, layouts: tuple[Layout, Layout], identity: LogIdentity) -> None:
    """Check a chunk that was read.

    Args:
        mark: the mark that it was read by.
        layouts: what the slots of its rows hold, for rows of keys and for rows of namespaces.

    Raises:
        CheckpointMismatchError: it is not as a chunk is.
    """
    try:
        wrong = next(_wrong(chunk, mark, *layouts), None)
    except Exception as error:
        wrong = describe(error)
    if wrong is not None:
        raise damaged(identity, f"chunk {chunk.number} of the state", wrong)


def check_rows(rows: list[Any], number: int, identity: LogIdentity) -> None:
    """Check that no current row of a chunk is missing; those that are out of date are never looked at.

    Raises:
        CheckpointMismatchError: one is.
    """
    if not all(rows):
        raise damaged(identity, f"chunk {number} of the state", "a row in it is no list")


def _wrong(chunk: Chunk, mark: Mark, *layouts: Layout) -> Iterator[str]:
    """Return what is wrong."""
    rows, start = chunk.rows, chunk.start
    if chunk.epoch != mark.epoch:
        yield f"it says that it is of epoch {chunk.epoch}"
    elsewhere = [index for index in chunk.large if index < len(rows)]
    if elsewhere and sorted(elsewhere) != [index for index, row in enumerate(rows) if row is None]:
        yield "another row of it is missing than lies next to it"
    # One loop of the writer's gives all rows of a kind their numbers and slots, and the digest says that they are as it
    # left them: so the first and the last one show whether it was right. There may be millions between them.
    for part, of in zip(chunk.parts, layouts):
        for index in {part.start, part.stop - 1} if part.start < part.stop else ():
            row = rows[index]
            if row is None and index in chunk.large:
                continue
            if type(row) is not list:
                yield "a row in it is no list"
            if len(row) != 1 + len(of):
                yield f"a row in it has not its {len(of)} slots"
            if row[0] != start + index:
                yield f"its rows do not have the numbers from {start} on"
    if not _are_plain(map(itemgetter(1), chunk.keys[chunk.own_keys :])):
        yield "a namespace in it is no plain value"
    if chunk.weights is not None and len(chunk.weights) != chunk.count:
        yield f"it has {len(chunk.weights)} sizes of {chunk.count} entries"
    for wrong in (_wrong_elements(chunk, layouts), _wrong_large(chunk), _wrong_replaced(chunk)):
        if wrong:
            yield wrong


def _are_plain(namespaces: Iterable[Any]) -> bool:
    try:
        distinct = set(namespaces)
    except TypeError:  # what has no hash is none
        return False
    return all(map(is_plain, distinct))


def _wrong_elements(chunk: Chunk, layouts: Sequence[Layout]) -> str | None:
    for index, counts in chunk.apart.items():
        if not 0 <= index < len(chunk.rows):
            return f"it has no row {index}, whose elements are said to be apart"
        row, of = chunk.rows[index], layouts[chunk.is_namespaced(index)]
        for slot in counts:
            if not _is_collection(slot, of) or (row is not None and row[slot] is not None):
                return f"slot {slot} of its row {index} has no elements apart"
    for found in chunk.elements:
        of = layouts[is_namespaced(found.address)]
        # (Slots of namespaces' rows are counted without the address here.)
        if not _is_collection(found.slot, of) or (of[found.slot - 1][1] == "list") != (found.keys is None):
            return f"elements in it are those of slot {found.slot}, which has none"
        if is_namespaced(found.address) and not is_plain(found.address[1]):
            return "a namespace in it is no plain value"
        if not _fit(found):
            return f"the elements in it of slot {found.slot} have not one name and one ordinal each"
    return None


def _is_collection(slot: int, layout: Layout) -> bool:
    return 1 <= slot <= len(layout) and layout[slot - 1][1] in ("map", "list")


def _fit(found: Elements) -> bool:
    count = len(found.values)
    if not count or len(found.ordinals) != count or found.ordinals[0] < 0 or (np.diff(found.ordinals) < 1).any():
        return False
    return found.keys is None or len(found.keys) == count


def _wrong_large(chunk: Chunk) -> str | None:
    for index, (number, _) in chunk.large.items():
        if not 0 <= index < chunk.count or number >= 0:
            return f"it has no entry {index} that may lie next to it under the number {number}"
    return None


def _wrong_replaced(chunk: Chunk) -> str | None:
    replaced, start = chunk.replaced, chunk.start
    if len(replaced) and (replaced[0] < 1 or replaced[-1] > start or (replaced[1:] <= replaced[:-1]).any()):
        return "it takes the place of entries that were not before it, or of one twice"
    return None
