"""Restores savepoints without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.savepoint.files import LocalSavepoint
from pillarbox._state.savepoint.log_builder import build_log
from pillarbox._state.savepoint.own_state import check_watermarks, redistribute
from pillarbox._state.savepoint.table import Loads
from pillarbox._unpickle import loads as loads_anything


def restore_logs(
    savepoint: LocalSavepoint,
    uid: str,
    identities: Iterable[LogIdentity],
    *,
    channels: Sequence[Sequence[int]] = (),
    loads: Loads = loads_anything,
) -> dict[int, MemoryChunkStore]:
    """Return the state logs, by subtask, that a start from a savepoint writes.

    Raises:
        CheckpointMismatchError: state is missing or damaged, a key would belong to a different subtask, or watermarks
            differ.
    """
    identities = list(identities)
    table = savepoint.table(uid)
    shares: dict[int, list[pa.RecordBatch]] = {identity.subtask: [] for identity in identities}
    sample = identities[0]
    for batch in savepoint.batches(uid):
        for subtask, share in table.route(batch, sample.parallelism, sample.max_parallelism, loads):
            shares[subtask].append(share)
    layout = table.operator.parallelism, table.operator.max_parallelism
    keys_stay = layout == (sample.parallelism, sample.max_parallelism)
    states = savepoint.own_states(uid, loads)
    if not keys_stay:
        check_watermarks(table.operator, states, sample.parallelism)
    own = redistribute(uid, states, sample.parallelism, channels, keys_stay=keys_stay)
    stores: dict[int, MemoryChunkStore] = {}
    for identity in identities:
        stores[identity.subtask] = store = MemoryChunkStore()
        build_log(store, table, identity, shares.pop(identity.subtask), own[identity.subtask], loads)
    return stores
