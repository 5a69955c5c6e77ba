"""The state of operators that keep the rows of all keys together, and the rule by which what they add is merged.

All that a subtask keeps lies under one key, the smallest whole number that the subtask owns, in namespaces: *places*.
A place has Arrow streams: an epoch adds some, and now and then some of about the same length become one, as in
a log-structured merge tree. So what is written again, in all, is a small multiple of what was added, and there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_groups import smallest_key
from pillarbox._state.state_descriptor import StateDescriptor

# That many streams of about the same length become one.
_FEW = 4

T = TypeVar("T", bound=Sized)


class HomeState:
    """A state with a value for each place."""

    def __init__(self, context: OperatorContext, backend: KeyedStateBackend, descriptor: StateDescriptor) -> None:
        self._backend = backend
        self._state: Any = backend.get_state(descriptor, namespaced=True)
        self._key = smallest_key(context.subtask, context.max_parallelism, max(1, context.parallelism))

    def at(self, place: Any) -> Any:
        """Return the state of a place."""
        self._backend.select(self._key, place)
        return self._state

    def places(self) -> list[Any]:
        """Return the places where something is kept, and the namespaces of timers."""
        self._backend.set_current_key(self._key)
        return self._backend.get_namespaces()


def of_about_the_same_length(older: Iterable[T], rows: int, longest: Callable[[T], int] | None = None) -> list[T]:
    """Return the streams that become one with a new one: the latest ones, the latest first; none where they are few.

    Args:
        older: those that are kept, the latest first.
        rows: how many rows the new one has.
        longest: returns how many rows such as those of a stream may be in one; None: any number.
    """
    taken: list[T] = []
    for each in older:
        if len(each) > 2 * rows or (longest is not None and rows + len(each) > longest(each)):
            break
        taken.append(each)
        rows += len(each)
    return taken if len(taken) >= _FEW - 1 else []
