"""The keyed state backend, as operators, tasks and harnesses see it; and the further view of the state log.

Only the mailbox thread may touch a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from pillarbox._state.descriptors import ListStateDescriptor, StateDescriptor
from pillarbox._time.internal_timer_service import KeyContext, KeyedTimers

__all__ = ["FoldedWindows", "KeyedStateBackend", "LoggedRows", "LoggedStateBackend", "SlotSpec", "StateUndo"]


class SlotSpec(NamedTuple):
    """The content of a slot of the rows: a state's name, or a timer service's; and the kind."""

    name: str
    kind: str


class KeyedStateBackend(KeyContext, Protocol):
    """All keyed state of one operator in one subtask, and its timers: Flink's ``KeyedStateBackend``.

    States and timers are those of the current key, or of the current key in the current namespace. They are declared
    before :meth:`seal`. List, reducing and aggregating states of namespaces have
    ``merge_namespaces(target, sources)``; reducing and aggregating ones ``fold(value)``, which adds a value, also None,
    and returns whether it was the first, and ``accumulator()``, which returns what is folded so far, or None.

    Attributes:
        operator: the operator's name, for errors.
        key: the current key.
        row: the row of the current key. It is the backend's own: nobody else looks into it.
        now: the processing time of the epoch (epoch ms), by which state expires that has a time-to-live.
    """

    row: Any
    now: int

    @property
    def rows(self) -> Mapping[Any, Any]:
        """The rows by key: ``rows[key]`` is made where there is none.

        ``row = rows[key]`` and ``key = key`` are :meth:`set_current_key` in line, for loops over records of operators
        that use no namespaces.
        """

    @property
    def is_declared(self) -> bool:
        """Whether the operator has declared any state, or has timers."""

    def get_state(self, descriptor: StateDescriptor, *, namespaced: bool = False, late: bool = False) -> Any:
        """Return the state that a descriptor declares; the same name means the same state.

        Args:
            namespaced: it is one of (key, namespace); else of the key.
            late: it may be asked for at any time, so a checkpoint may hold it before it is; such as a trigger's.

        Raises:
            ProgramError: it was declared with another kind, or is declared too late.
        """

    def get_operator_state(self, descriptor: StateDescriptor, *, is_read: bool = False) -> Any:
        """Return the state that a descriptor declares, of the operator itself: of its subtask, and of no key.

        An operator that has such states has none of namespaces.

        Args:
            is_read: it is only read: there is nothing to undo.

        Raises:
            ProgramError: it was declared with another kind, or is declared too late.
        """

    def share_namespaces(self) -> None:
        """Let all keys share namespaces: what they have there is kept by namespace, and has its timers together.

        It comes before anything is declared. The one state of namespaces, which is reducing or aggregating, is a
        :class:`FoldedWindows` then, and a timer calls once for all keys of its namespace.
        """

    def get_operator_list(self, descriptor: ListStateDescriptor, uid: str, *, union: bool) -> Any:
        """Return the list state that a descriptor declares, of an operator of the chain itself. It may come late.

        Args:
            uid: the operator's.
            union: whether all subtasks get all elements when their number changes; else these are shared out.

        Raises:
            ProgramError: there are states or timers of namespaces, beside which it cannot lie.
        """

    def delete_if_exists(self, name: str) -> None:
        """Delete the state of keys that a checkpoint holds under a name.

        Raises:
            ProgramError: the program declares it, or it is too late.
        """

    def delete_operator_list(self, name: str, uid: str) -> None:
        """Delete the list state that a checkpoint holds under a name, of an operator of the chain itself.

        Raises:
            ProgramError: the function declares it.
        """

    def create_timers(self, name: str, *, namespaced: bool = False) -> KeyedTimers:
        """Return the timers of one time domain of a timer service."""

    def check_owner(self, key: Any) -> None:
        """Check that a key may have state here.

        Raises:
            OperatorError: the key belongs to another subtask.
        """

    def seal(self) -> None:
        """End the declaring of states: records come, or state is restored."""

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current one; there is no current namespace then.

        Raises:
            OperatorError: the key belongs to another subtask.
        """

    def leave_key(self) -> None:
        """Make no key the current one: states of keys are refused."""

    def drop_keys(self) -> None:
        """Drop the states and timers of all keys; the operator's own states stay."""

    def set_current_namespace(self, namespace: Any) -> None:
        """Make ``namespace`` the current one of the current key, as Flink's ``InternalKvState.setCurrentNamespace``.

        Raises:
            ProgramError: it is no int, text, or tuple of such.
        """

    def select(self, key: Any, namespace: Any) -> None:
        """Make ``key`` and ``namespace`` the current ones, for states and timers of namespaces alone.

        That is :meth:`set_current_key` and :meth:`set_current_namespace` in one step, for loops over records.

        Raises:
            OperatorError: the key belongs to another subtask.
            ProgramError: the namespace is no int, text, or tuple of such.
        """

    def get_namespaces(self) -> list[Any]:
        """Return the namespaces in which the current key has state or timers."""
        ...

    @property
    def num_keys(self) -> int:
        """The number of keys that have state or timers."""

    def get_keys(self) -> Iterable[Any]:
        """Return the keys that have state or timers."""

    def keys_with(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have something in a state of keys, in an order that depends on the keys alone.

        So it is the same in each worker, whatever its memory has seen. Flink's ``getKeys(state, namespace)``.

        Raises:
            ProgramError: the state is not declared.
        """
        ...

    def contents(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """Return the contents of states that are not empty, by name: the very objects, to be looked at only.

        Args:
            namespace: whose states they are; None: the key's own.
        """
        ...

    def timestamps(self, key: Any, namespace: Any = None) -> dict[str, list[int]]:
        """Return the timestamps of a key's timers, or of those it has in a namespace, by the timers' name."""
        ...

    def largest_keys(self, count: int = 3) -> list[tuple[Any, int]]:
        """Return the keys that take most memory, and about how many bytes each takes, without allocating much."""

    def allow_undo(self, appended: Collection[str] = (), unchanged: Collection[str] = ()) -> StateUndo:
        """Return what undoes what is done to states and timers; these are declared later.

        Args:
            appended: the names of list states whose elements are never changed.
            unchanged: the names of states in which there is nothing to undo.
        """
        ...


class StateUndo(Protocol):
    """What is done to keyed state and timers, to be undone."""

    def begin(self) -> None:
        """Begin: what was done so far is for good."""

    def mark(self) -> int:
        """Return a mark, up to which what follows can be undone."""
        ...

    def restore(self, mark: int = 0) -> None:
        """Undo what was done since the mark, or since all began."""

    def end(self) -> None:
        """End: also what follows is for good."""


class FoldedWindows(Protocol):
    """The state of windows that all keys share: what is folded in them, by window and key."""

    def namespaces(self) -> list[Any]:
        """Return the windows in which any key has something."""
        ...

    def find(self, namespace: Any) -> Any:
        """Return a window, for :meth:`fold`; None: no key has anything in it."""

    def begin(self, namespace: Any) -> Any:
        """Return a new window. Its timers are registered with its namespace, once for all keys."""

    def fold(
        self,
        values: Iterable[Any],
        keys: Iterable[Any],
        windows: Iterable[Any],
        begun: Callable[[Any, Any], None] | None,
    ) -> None:
        """Fold each value in, under the key and into the window in its place. If one fails, its key is the current one.

        Args:
            begun: called with each key that is new in a window, and the window, before its element is folded in.

        Raises:
            ProgramError: the function that folds returned None.
        """

    def folded(self, namespace: Any, key: Any) -> Any:
        """Return what is folded for a key in a window; None: nothing."""

    def remove(self, namespace: Any, key: Any) -> None:
        """Remove what a key has in a window that there is."""

    def each(self, namespace: Any, timestamp: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Return the keys of a window with what is folded; taking one makes its key the current one.

        Those are left out for whom the timer at ``timestamp`` does not call.
        """
        ...

    def quieten(self, namespace: Any, timestamp: int) -> None:
        """Have a timer of a window that was restored call for no key whose row has timers, and this one no more."""

    @property
    def quiet(self) -> bool:
        """Whether there may be a timer that does not call for all keys of its window."""
        ...

    def wake(self, keys: Iterable[Any], windows: Iterable[Any]) -> None:
        """Have all timers of windows call for keys again, to which elements are about to be added."""

    def rewrite(self, namespace: Any) -> None:
        """Have all of a window written with this epoch: its timers have changed."""

    def end(self, namespace: Any) -> None:
        """Remove a window with all that keys have in it, and its timers."""


class LoggedRows(Protocol):
    """Rows that the state log writes and restores: those of keys, or those of namespaces.

    A row is a list. ``row[0]`` is its mark: at least 0, it is the number of the entry that holds the row, which is
    unchanged since. Behind it a namespace's row has its address. Then come the slots.

    Attributes:
        slots: what the slots hold.
        former: the names that slots have now, by those that they had.
        deleted: the names of slots of states that the program deletes.
        is_renamed: whether a state got another name since rows were restored: all are to be written anew then.
    """

    slots: list[SlotSpec]
    former: dict[str, str]
    deleted: set[str]
    is_renamed: bool

    def rewrite(self) -> None:
        """Have all rows written with this epoch; rows of keys also those of namespaces."""

    def adopt_slots(self, written: list[SlotSpec]) -> bool:
        """Compare the slots of restored rows with those that the program declares, and make room for those to come.

        Returns:
            whether the program has renamed or deleted any of them.

        Raises:
            CheckpointMismatchError: a restored state is not declared, or with another kind.
        """

    def positions(self, written: list[SlotSpec]) -> list[int] | None:
        """Return for each slot its position in written rows (0 where they have none); None: they are the same."""
        ...

    def declared_types(self) -> Iterable[tuple[SlotSpec, tuple[Any, ...]]]:
        """Return what is declared of the types of states, as far as they were asked for: of maps two."""
        ...

    def count_rows(self) -> int:
        """Return how many rows there are."""
        ...

    def load(self, addresses: list[Any], rows: list[list[Any]]) -> None:
        """Take over rows, each once, during a cold start."""


class LoggedStateBackend(LoggedRows, Protocol):
    """A backend that the state log writes and restores: as such it is the rows of keys."""

    operator: str

    @property
    def spaces(self) -> LoggedRows:
        """The rows of namespaces."""
        ...

    @property
    def rows(self) -> Mapping[Any, list[Any]]:
        """The rows of keys; ``get`` makes none."""
        ...

    def find(self, address: Any) -> list[Any] | None:
        """Return the row of an address."""
        ...

    def take_changes(self) -> tuple[dict[Any, list[Any]], dict[Any, int]]:
        """Return the rows that changed in this epoch and hold something; and the stale entries of those that are gone.

        Both are by address, those of keys first. Rows that hold nothing are dropped. The caller sets the marks of the
        rows that it writes.
        """
        ...

    def without_timers(self) -> list[str]:
        """Return the names of the slots of keys' timers that no row has any timer in."""
        ...

    def begin_loading(self, without_timers: Collection[str]) -> None:
        """Take note of the slots that no timers need to be looked for in: millions of rows may come."""

    def end_loading(self) -> None:
        """Take note that all rows are there."""
