"""State of operators that store the rows of all keys together, and the rule for merging its streams.

All state of a subtask belongs to one key, the smallest integer that the subtask owns, in namespaces called *addresses*.
An address has Arrow streams: an epoch adds some, and from time to time streams of similar length are merged, as in a
log-structured merge tree. So few streams exist, and total bytes written are a small multiple of the bytes added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import smallest_key
from pillarbox._state.state_descriptor import StateDescriptor

# Number of streams of similar length that are merged.
_FEW = 4

T = TypeVar("T", bound=Sized)


class AllKeysState:
    """A state with a value for each address."""

    def __init__(self, context: OperatorContext, backend: KeyedStateBackend, descriptor: StateDescriptor) -> None:
        self._backend = backend
        self._state: Any = backend.get_state(descriptor, namespaced=True)
        self._key = smallest_key(context.subtask, context.max_parallelism, max(1, context.parallelism))

    def at(self, address: Any) -> Any:
        """Return the state at an address."""
        self._backend.select(self._key, address)
        return self._state

    def addresses(self) -> list[Any]:
        """Return the addresses with state, and the namespaces of timers."""
        self._backend.set_current_key(self._key)
        return self._backend.get_namespaces()


def streams_to_merge(older: Iterable[T], rows: int, longest: Callable[[T], int] | None = None) -> list[T]:
    """Return the latest streams to merge with a new one, the latest first; empty if they are few.

    Args:
        older: the stored streams, the latest first.
        rows: the number of rows of the new stream.
        longest: returns the most rows of this size in one stream, or None for no limit.
    """
    merged: list[T] = []
    for stream in older:
        if len(stream) > 2 * rows or (longest is not None and rows + len(stream) > longest(stream)):
            break
        merged.append(stream)
        rows += len(stream)
    return merged if len(merged) >= _FEW - 1 else []
