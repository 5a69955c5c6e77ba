"""Keyed state: descriptors, key groups, the heap backend and the state log."""

from pillarbox.state.backend import FoldedWindows, KeyedStateBackend, SlotSpec
from pillarbox.state.chunk_store import ChunkStore, MemoryChunkStore
from pillarbox.state.descriptors import (
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
from pillarbox.state.heap_backend import HeapKeyedStateBackend, KeyOwner
from pillarbox.state.log_head import LogIdentity
from pillarbox.state.state_log import StateLog, Sync
from pillarbox.state.ttl import StateTtlConfig

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ChunkStore",
    "FoldedWindows",
    "HeapKeyedStateBackend",
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
    "SlotSpec",
    "StateDescriptor",
    "StateLog",
    "StateTtlConfig",
    "Sync",
    "ValueState",
    "ValueStateDescriptor",
]
