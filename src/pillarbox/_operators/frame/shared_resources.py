"""Resources that tasks in a process share, such as event loops and rate limits.

In Flink, each subtask has its own. Here, one process runs a partition's many subtasks, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

R = TypeVar("R")

#: The resource name of the event loop of async keyed functions, which a thread's tasks share.
EVENT_LOOP = "event loop of keyed functions"


class _Held:
    def __init__(self, resource: Any) -> None:
        self.resource = resource
        self.leases = 0


class SharedResources:
    """The named resources that the tasks of a vertex (operator chain) share in one partition. Mailbox thread only.

    Attributes:
        stay: whether all epochs of the tasks run in this process.
        resting: returns a context manager for waits of the mailbox thread. During such a wait, other threads can run
            functions.
        query: the query's id, or empty if unknown.
        of_thread: the resources that all vertices' tasks in this mailbox thread share.
    """

    def __init__(
        self,
        *,
        stay: bool = True,
        resting: Callable[[], AbstractContextManager[object]] = nullcontext,
        query: str = "",
        of_thread: SharedResources | None = None,
    ) -> None:
        self.stay = stay
        self.query = query
        self.resting = resting
        self.of_thread: SharedResources = of_thread or self
        self._held: dict[Any, _Held] = {}

    def lease(self, name: Any, make: Callable[[], R]) -> ResourceLease[R]:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = _Held(make())
        return ResourceLease(self._held, name, held)

    def get(self, name: Any) -> Any:
        held = self._held.get(name)
        return None if held is None else held.resource


class ResourceLease(Generic[R]):
    """A reference to a shared resource. Releasing the last reference calls the resource's ``close()``."""

    def __init__(self, all_held: dict[Any, _Held], name: Any, held: _Held) -> None:
        self.resource: R = held.resource
        self._all_held = all_held
        self._name = name
        self._held = held
        held.leases += 1

    def spoil(self) -> None:
        if not self.is_spoilt:
            del self._all_held[self._name]

    @property
    def is_spoilt(self) -> bool:
        return self._all_held.get(self._name) is not self._held

    def release(self) -> None:
        self._held.leases -= 1
        if not self._held.leases:
            self.spoil()
            self._held.resource.close()
