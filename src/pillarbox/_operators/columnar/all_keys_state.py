"""State of operators that store the rows of all keys together.

The state store's key is the smallest integer whose key group the subtask owns. Namespaces, called *addresses*, divide
the state. Each epoch adds Arrow streams to an address. Streams of similar length are merged, as in a log-structured
merge tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import smallest_key
from pillarbox._state.state_descriptor import StateDescriptor

_FEW = 4

T = TypeVar("T", bound=Sized)


class AllKeysState:
    """A state with one value per namespace (*address*)."""

    def __init__(self, context: OperatorContext, backend: KeyedStateBackend, descriptor: StateDescriptor) -> None:
        self._backend = backend
        self._state: Any = backend.get_state(descriptor, namespaced=True)
        self._key = smallest_key(context.subtask, context.max_parallelism, max(1, context.parallelism))

    def at(self, address: Any) -> Any:
        self._backend.select(self._key, address)
        return self._state

    def addresses(self) -> list[Any]:
        self._backend.set_current_key(self._key)
        return self._backend.get_namespaces()


def streams_to_merge(older: Iterable[T], rows: int, longest: Callable[[T], int] | None = None) -> list[T]:
    """Return the stored streams, latest first, to merge with a new stream of ``rows`` rows."""
    merged: list[T] = []
    for stream in older:
        if len(stream) > 2 * rows or (longest is not None and rows + len(stream) > longest(stream)):
            break
        merged.append(stream)
        rows += len(stream)
    return merged if len(merged) >= _FEW - 1 else []
