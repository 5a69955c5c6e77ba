"""Cleaning a state log: what is still current at its old end is written again, and the oldest chunks go."""

from __future__ import annotations

from pillarbox._state.chunks.large_collection import LargeCollection
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import is_namespaced
from pillarbox._state.log import limits
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.ledger import CLEANED
from pillarbox._state.slots import Row

# An epoch drops this many chunks of which nothing is current, also while the log is short: one more than most add.
_STALE_AT_A_TIME = 2


def drop_stale(contents: LogContents, store: ChunkStore) -> None:
    """Drop the oldest chunks, as far as nothing in them is current, and the large values of deleted states."""
    while contents.ledger.chunks and contents.ledger.oldest_is_stale():
        store.remove(contents.drop_oldest().number)
    for number in contents.orphans:
        store.remove(number)
    contents.orphans = []


def clean(
    contents: LogContents, store: ChunkStore, added: float, gone: float
) -> tuple[list[list[Row]], dict[LargeCollection, list[int]]]:
    """Clean the old end as far as an epoch lengthens the log, and return what is still current there, to be written.

    The epoch's changes bound how much is written again, so no epoch pays for another.

    Args:
        added: how many bytes of rows and elements the epoch adds.
        gone: how many bytes become outdated by it.

    Returns:
        the rows of each table, and places of elements by their maps and lists.
    """
    for _ in range(_STALE_AT_A_TIME):
        if contents.ledger.chunks and contents.ledger.oldest_is_stale():
            store.remove(contents.drop_oldest().number)
    ledger, collections = contents.ledger, contents.collections
    rows, namespaces = contents.backend.rows, contents.backend.namespaces
    has_namespaces = bool(namespaces.slots)
    chunk_bytes, slack = limits.CHUNK_BYTES, limits.SLACK_BYTES
    moved: list[list[Row]] = [[], []]
    elements: dict[LargeCollection, list[int]] = {}
    changes = max(added, gone)
    # Also what is not written again takes its time to look at.
    looks = 3 * changes + chunk_bytes // limits.GATHERING
    full = max(ledger.current // limits.CHUNK_ROWS, ledger.live_bytes // chunk_bytes)
    most_chunks = limits.SPARE_CHUNKS + limits.GATHERING * full
    # A little at a time as long as the log is hardly too long: epochs take about the same time.
    excess = ledger.excess(added, contents.head.cleaned) - slack
    budget = min((1 + CLEANED) * changes - added, changes / 2 + max(0.0, excess))
    if len(ledger.chunks) > most_chunks:
        budget += chunk_bytes // limits.GATHERING
    while ledger.chunks and (len(ledger.chunks) > most_chunks or excess > 0):
        oldest = ledger.chunks[0]
        look = ledger.mean_of_oldest()
        for address, slot, name in () if ledger.oldest_is_stale() else oldest.owners(contents.head.cleaned):
            if budget <= 0 or looks <= 0:
                return moved, elements
            looks -= look
            entry = oldest.start + contents.head.cleaned
            contents.head.cleaned += 1
            if not slot:
                row = rows.get(address)
                if row is None and has_namespaces:
                    row = namespaces.find(address)
                if row is None or row[0] != entry:
                    continue
                moved[is_namespaced(address)].append(row)
            else:
                collection = collections.get(address, slot)
                place = None if collection is None else collection.place_of(name, entry)
                if collection is None or place is None:
                    continue
                elements.setdefault(collection, []).append(place)
            size = ledger.size_of(entry)
            budget -= size
            added += size
        contents.drop_oldest()
        store.remove(oldest.number)
        excess = ledger.excess(added, contents.head.cleaned) - slack
    return moved, elements
