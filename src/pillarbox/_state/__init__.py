"""Keyed state: descriptors, key groups, the heap backend and the state log.

`keys` and `types` are at the bottom, then `heap` and `chunks`, `log`, `inspect`, `savepoint`. Start with
`descriptors.py`, then `heap/backend.py`: keyed state as operators see it. All state belongs to the mailbox thread. Weak
spot: `log` knows `heap`, as a log's entries are rows of the heap.
"""

from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import ChunkStore, MemoryChunkStore
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.heap.shared_windows import SharedWindows
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._state.ttl import StateTtlConfig

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ChunkStore",
    "KeyOwner",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "LogIdentity",
    "MapState",
    "MapStateDescriptor",
    "MemoryChunkStore",
    "ReducingState",
    "ReducingStateDescriptor",
    "SharedWindows",
    "StateDescriptor",
    "StateLog",
    "StateTtlConfig",
    "Sync",
    "ValueState",
    "ValueStateDescriptor",
]
