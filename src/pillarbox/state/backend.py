"""What a keyed state backend is to operators, tasks and harnesses; and what the state log knows of it beyond that.

Only the mailbox thread may touch a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from pillarbox.state.descriptors import StateDescriptor
from pillarbox.time.internal_timer_service import KeyContext, KeyedTimers

__all__ = ["KeyedStateBackend", "LoggedStateBackend", "SlotSpec"]


class KeyedStateBackend(KeyContext, Protocol):
    """All keyed state of one operator in one subtask, and its timers: Flink's ``KeyedStateBackend``.

    States and timers are those of the current key. They are declared before :meth:`seal`.

    Attributes:
        operator: the operator's name, for errors.
        key: the current key.
        row: what the backend keeps of the current key. It is the backend's own: nobody else looks into it.
    """

    row: Any

    @property
    def rows(self) -> Mapping[Any, Any]:
        """The rows by key: ``rows[key]`` is made where there is none.

        ``row = rows[key]`` and ``key = key`` are :meth:`set_current_key` in line, for loops over records.
        """

    @property
    def is_declared(self) -> bool:
        """Whether the operator has declared any state, or has timers."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return the state that a descriptor declares; the same name gives the same state.

        Raises:
            ProgramError: it was declared with another kind, or is declared too late.
        """

    def create_timers(self, name: str, *, namespaced: bool = False) -> KeyedTimers:
        """Return the timers of one time domain of a timer service."""

    def seal(self) -> None:
        """End the declaring of states: records come, or state is restored."""

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current one.

        Raises:
            OperatorError: the key belongs to another subtask.
        """

    @property
    def num_keys(self) -> int:
        """The number of keys that have state or timers."""

    def get_keys(self) -> Iterable[Any]:
        """Return the keys that have state or timers."""

    def contents(self, key: Any) -> dict[str, Any]:
        """Return the contents of a key's states that are not empty, by name: the very objects, to be looked at only."""

    def largest_keys(self, count: int = 3) -> list[tuple[Any, int]]:
        """Return the keys that take most memory, and about how many bytes each takes, without allocating much."""


class SlotSpec(NamedTuple):
    """What a slot of the rows holds: a state's name, or a timer service's; and the kind."""

    name: str
    kind: str


class LoggedStateBackend(Protocol):
    """A backend whose rows are lists, which the state log writes and restores.

    ``row[0]`` is the mark: at least 0, it is the number of the entry that holds the row, which is unchanged since.

    Attributes:
        slots: what the other places of a row hold.
    """

    operator: str
    slots: list[SlotSpec]

    @property
    def rows(self) -> Mapping[Any, list[Any]]:
        """The row of each key that has state or timers; ``get`` makes none."""

    def take_changes(self) -> tuple[dict[Any, list[Any]], dict[Any, int]]:
        """Return the rows that changed in this epoch and hold something, by key; and the stale entries of those gone.

        Rows that hold nothing are dropped. The caller sets the marks of the rows that it writes.
        """

    def adopt_slots(self, written: list[SlotSpec]) -> list[int] | None:
        """Compare the slots of restored rows with those that the program declares.

        Returns:
            for each slot of the program its position in the restored rows (0 where they have none), or None
            when rows can be taken as they are.

        Raises:
            CheckpointMismatchError: a restored state is not declared, or with another kind.
        """

    def load(self, keys: list[Any], rows: list[list[Any]]) -> None:
        """Take over rows, each key's once, during a cold start; :meth:`end_loading` ends it."""

    def end_loading(self) -> None:
        """Have the timers ready."""

    def apply(self, keys: list[Any], rows: list[list[Any]], removed: list[Any]) -> None:
        """Take over rows that another worker wrote, into rows and timers that are live here."""
