"""What tasks share that live in one process: things that are expensive, or limited, and not state.

In Flink a subtask has them once. Here the key groups of a partition are subtasks of their own, which live in one
process and run one after another: there they share what Flink's subtask has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class _Held:
    def __init__(self, resource: Any) -> None:
        self.resource = resource
        self.leases = 0


class SharedResources:
    """The resources of the tasks of one vertex in one partition, by name. Their mailbox thread, which is one, uses it.

    Attributes:
        stay: whether the tasks live here from epoch to epoch; else other processes may run epochs of theirs in between.
        resting: returns a context in which their mailbox thread waits, so that others run functions meanwhile.
    """

    def __init__(
        self, *, stay: bool = True, resting: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self.stay = stay
        self.resting = resting
        self._held: dict[Any, _Held] = {}

    def lease(self, name: Any, make: Callable[[], R]) -> Lease[R]:
        """Return a share in a resource, which is made for the first one."""
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = _Held(make())
        return Lease(self._held, name, held)


class Lease(Generic[R]):
    """A share in a resource, whose ``close()`` is called when the last share has been given back.

    Attributes:
        resource: it.
    """

    def __init__(self, all_held: dict[Any, _Held], name: Any, held: _Held) -> None:
        self.resource: R = held.resource
        self._all_held = all_held
        self._name = name
        self._held = held
        held.leases += 1

    def spoil(self) -> None:
        """Let nobody else have this resource: whoever asks for one gets a new one."""
        if not self.is_spoilt:
            del self._all_held[self._name]

    @property
    def is_spoilt(self) -> bool:
        """Whether nobody else will have it."""
        return self._all_held.get(self._name) is not self._held

    def release(self) -> None:
        """Give the share back."""
        self._held.leases -= 1
        if not self._held.leases:
            self.spoil()
            self._held.resource.close()
