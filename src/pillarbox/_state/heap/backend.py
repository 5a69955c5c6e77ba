"""The heap keyed state backend: live Python objects, one row per key, and one per key and namespace.

Looking up the row once per record makes each state access one list index, and what a key owns is written, restored
and dropped together. Only the mailbox thread may touch any of it, and outside of ``state`` nobody knows what is in a
row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import tzinfo
from itertools import groupby
from threading import get_ident
from typing import Any

from pillarbox._errors import CheckpointMismatchError, ProgramError
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor
from pillarbox._state.heap.key_rows import KeyOwner, KeyRows
from pillarbox._state.heap.namespace_rows import NamespaceRows
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.heap.shared_windows import SharedWindows
from pillarbox._state.heap.states import CurrentRow
from pillarbox._state.heap.ttl_cleaner import TtlCleaner
from pillarbox._state.heap.ttl_states import TTL_STATES
from pillarbox._state.heap.undo import Undo
from pillarbox._state.heap.undoable_states import UndoableTimers, undoable
from pillarbox._state.keys.addresses import OPERATOR, is_namespaced, namespace_address
from pillarbox._state.keys.key_groups import stable_hash
from pillarbox._state.slots import FIRST_SLOT, LATE, LIST, STAMPS, UNION, Row, SlotSpec, state_name
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.types.sizes import largest_rows
from pillarbox._time.internal_timer_service import InternalTimers
from pillarbox._types.type_information import Types

# Batch mode forgets dropped rows when there are more than this many.
_MANY_DROPPED = 1_000


class KeyedStateBackend(KeyRows):
    """All keyed state of one operator in one subtask, and its timers: Flink's ``HeapKeyedStateBackend``.

    States and timers belong to the current key, or to the current key in the current namespace. They are declared
    before :meth:`seal`. List, reducing and aggregating states of namespaces have
    ``merge_namespaces(target, sources)``; reducing and aggregating ones ``fold(value)``, which adds a value, also None,
    and returns whether it was the first, and ``accumulator()``, which returns what is folded so far, or None.

    Args:
        operator: the operator's name, for errors.
        owner: the subtask whose keys they are; None: it may hold any key.
        zone: the time zone of naive datetimes; None: they are refused.

    Attributes:
        namespaces: the rows of namespaces.
    """

    key: Any
    row: Row

    def __init__(self, operator: str, owner: KeyOwner | None = None, zone: tzinfo | None = None) -> None:
        super().__init__(operator, owner, zone)
        self.namespaces: NamespaceRows = NamespaceRows(self)
        # The keys that were asked for last, and in their order: most often there are the same ones again.
        self._ordered_keys: tuple[list[Any], list[Any]] = ([], [])
        # In an operator that continues when its function raises: where its states and timers note what is to be undone.
        self._undo: Undo | None = None
        self._cleaner: TtlCleaner | None = None

    # -- declaring states --

    def share_namespaces(self) -> None:
        """Let all keys share namespaces: what they have there is kept by namespace, and has its timers together.

        It comes before anything is declared. The one state of namespaces, which is reducing or aggregating, is a
        :class:`SharedWindows` then, and a timer calls once for all keys of its namespace.
        """
        assert self._undo is None, "what all keys share cannot be undone"
        self.namespaces = SharedWindows(self)

    def get_state(self, descriptor: StateDescriptor, *, namespaced: bool = False, late: bool = False) -> Any:
        """Return the state that a descriptor declares; the same name means the same state.

        Args:
            namespaced: it is one of (key, namespace); else of the key.
            late: it may be asked for at any time, so a checkpoint may hold it before it is; such as a trigger's.

        Raises:
            ProgramError: it was declared with another kind, or is declared too late.
        """
        return self._undoable(self._table(namespaced).declare(descriptor, late=late), descriptor)

    def _table(self, namespaced: bool) -> RowTable:
        """Return the rows in which states and timers are declared."""
        self.namespaces.is_of_keys |= namespaced
        return self.namespaces if namespaced else self

    def _undoable(self, state: Any, descriptor: StateDescriptor) -> Any:
        return state if self._undo is None else undoable(state, descriptor, self._undo)

    def make_timed(self, name: str, slot: int, descriptor: StateDescriptor) -> Any:
        """Return a state with a time-to-live, whose stamps are in a slot of their own."""
        make, kind = TTL_STATES[descriptor.kind]
        stamp = Types.LONG()
        declared = (descriptor.declared_types[0], stamp) if kind == MapStateDescriptor.kind else (stamp,)
        stamps = self._slot_for(SlotSpec(STAMPS + name, kind), declared)
        state = make(self.seen, slot, descriptor, stamps)
        cleaner = self._made_cleaner()
        cleaner.states.append(state)
        if name.startswith(LATE):  # rows may have been read before
            cleaner.look_at_all()
        return state

    def _made_cleaner(self) -> TtlCleaner:
        if self._cleaner is None:
            self._cleaner = TtlCleaner(self)
        return self._cleaner

    def _new_state(self, name: str, descriptor: StateDescriptor, late: bool, current: CurrentRow) -> Any:
        if late and descriptor.ttl_config is None and self._kind_of(STAMPS + name) is not None:
            self._made_cleaner().look_at_all([self.place_of(STAMPS + name)])
        return super()._new_state(name, descriptor, late, current)

    def get_operator_state(self, descriptor: StateDescriptor, *, is_read: bool = False) -> Any:
        """Return the state that a descriptor declares, of the operator itself: of its subtask, and of no key.

        An operator that has such states has none of namespaces.

        Args:
            is_read: it is only read: there is nothing to undo.

        Raises:
            ProgramError: it was declared with another kind, or is declared too late.
        """
        state = self.namespaces.declare(descriptor, current=self.namespaces.operators_row)
        return state if is_read else self._undoable(state, descriptor)

    def get_operator_list(self, descriptor: ListStateDescriptor, uid: str, *, union: bool) -> Any:
        """Return the list state that a descriptor declares, of an operator of the chain itself. It may come late.

        Args:
            uid: the operator's.
            union: whether all subtasks get all elements when their number changes; else these are shared out.

        Raises:
            ProgramError: there are states or timers of namespaces, and it cannot be kept together with them.
        """
        namespaces = self.namespaces
        if namespaces.is_of_keys:
            raise ProgramError(
                f"operator {self.operator!r}: the state {descriptor.name!r} of the operator {uid!r} itself cannot lie"
                " beside the windows of keys: put rebalance() between the window and the function, or keep it in a"
                " state of keys"
            )
        lead = f"{UNION if union else LIST}{uid}/"
        return namespaces.declare(descriptor, late=True, current=namespaces.operators_row, lead=lead)

    def delete_operator_list(self, name: str, uid: str) -> None:
        """Delete the list state that a checkpoint holds under a name, of an operator of the chain itself.

        Raises:
            ProgramError: the function declares it.
        """
        namespaces = self.namespaces
        for lead in (LIST, UNION):
            slot = f"{lead}{uid}/{name}"
            if namespaces.declares(slot):
                raise ProgramError(
                    f"operator {self.operator!r} deletes the state {name!r} of the operator {uid!r} itself, and"
                    " declares it: do one of both"
                )
            row = namespaces.find(OPERATOR)
            if row is not None and any(spec.name == slot for spec, _ in namespaces.contents_by_slot(row)):
                if row[0] >= 0:
                    namespaces.touch_row(row)
                row[namespaces.place_of(slot)] = None

    def check_operator_lists(self) -> None:
        """Refuse a checkpoint with list states of operators that nobody has asked for.

        Raises:
            CheckpointMismatchError: there is one.
        """
        row = self.namespaces.find(OPERATOR)
        for (name, _), content in () if row is None else self.namespaces.contents_by_slot(row):
            if name.startswith((LIST, UNION)) and not self.namespaces.declares(name):
                kind = "union list" if name.startswith(UNION) else "list"
                raise CheckpointMismatchError(
                    f"the checkpoint holds the {kind} state {state_name(name)!r} (uid and name) with"
                    f" {len(content)} elements, which no function asks for in initialize_state(): run the program that"
                    " wrote it, set uid() of the operator to the one in the checkpoint, call delete_if_exists() of the"
                    " operator state store there, or start from a new one"
                )

    def create_timers(self, name: str, *, namespaced: bool = False) -> InternalTimers:
        """Return the timers of one time domain of a timer service."""
        timers = self._table(namespaced).add_timers(name)
        return timers if self._undo is None else UndoableTimers(timers, self._undo)

    def add_slot(self, spec: SlotSpec) -> int:
        """Add a slot to each row, and return its place."""
        blank = self.blank
        slot = super().add_slot(spec)
        if self.row is blank:
            self.row = self.rows[self.key]
        return slot

    def seal(self) -> None:
        """End the declaring of states: records come, or state is restored. Some may come late nevertheless."""
        super().seal()
        self.namespaces.seal()

    @property
    def is_declared(self) -> bool:
        """Whether the operator has declared any state, or has timers."""
        return bool(self.slots or self.namespaces.slots)

    def refuse_threads(self) -> OneThread:
        """Refuse states, which are declared later, outside of one thread."""
        rows = OneThread(self)
        self.seen = rows
        return rows

    def allow_undo(self, unchanged: Collection[str] = ()) -> Undo:
        """Return what undoes what is done to states and timers; these are declared later.

        Args:
            unchanged: the names of states in which there is nothing to undo.
        """
        assert not self.is_declared and self._undo is None
        self._undo = undo = Undo(unchanged)
        return undo

    # -- the current key and namespace --

    def set_current_key(self, key: Any) -> Row:
        """Make ``key`` the current one, and return its row; there is no current namespace then.

        Raises:
            OperatorError: the key belongs to another subtask.
        """
        self.row = row = self.rows[key]
        self.key = key
        namespaces = self.namespaces
        namespaces.row = namespaces.nowhere
        return row

    def enter(self, address: Any) -> Row:
        """Make the key of an address the current one; return its row, made where there is none."""
        return self.set_current_key(address)

    def leave_key(self) -> None:
        """Make no key the current one: states of keys are refused."""
        self.row = self.nowhere
        self.key = None
        self.namespaces.row = self.namespaces.nowhere

    def set_current_namespace(self, namespace: Any) -> None:
        """Make ``namespace`` the current one of the current key, as Flink's ``InternalKvState.setCurrentNamespace``.

        Raises:
            ProgramError: it is no int, text, or tuple of such.
        """
        self.namespaces.row = self.namespaces.row_in(namespace)

    def select(self, key: Any, namespace: Any) -> None:
        """Make ``key`` and ``namespace`` the current ones, for states and timers of namespaces alone.

        That is :meth:`set_current_key` and :meth:`set_current_namespace` in one step, for loops over records.

        Raises:
            OperatorError: the key belongs to another subtask.
            ProgramError: the namespace is no int, text, or tuple of such.
        """
        self.key = key
        self.row = self.nowhere
        namespaces = self.namespaces
        # (row_in, in line for what is nearly always so.)
        found = namespaces.by_key.get(key)
        if type(found) is dict:
            row = found.get(namespace)
            namespaces.row = namespaces.row_in(namespace) if row is None else row
        elif found is not None and found[1][1] == namespace:
            namespaces.row = found  # type: ignore[assignment]
        else:
            namespaces.row = namespaces.row_in(namespace)

    def get_namespaces(self) -> list[Any]:
        """Return the namespaces in which the current key has state or timers."""
        return self.namespaces.namespaces_of(self.key)

    def drop_key(self, key: Any) -> None:
        """Drop the states of a key that has no timers.

        Raises:
            TypeMismatchError: a value does not fit its declared type.
        """
        row = self.rows.pop(key, None)
        if row is None:
            return
        self.types.check_each([row])
        row[FIRST_SLOT:] = self.blank[FIRST_SLOT:]
        if len(self.dirty) > 2 * len(self.rows) + _MANY_DROPPED:
            self.dirty[:] = [row for row in self.dirty if self.rows.get(row[1]) is row]

    def drop_keys(self) -> None:
        """Drop the states and timers of all keys; the operator's own states stay.

        Raises:
            TypeMismatchError: a value does not fit its declared type.
        """
        for table in self.tables:
            table.types.check_each(table.dirty)
        self.leave_key()
        self.rows.clear()
        self.dirty.clear()
        self.namespaces.drop_keys()
        if self._undo is not None:
            self._undo.forget_maps()
        # (Batch mode comes here for each key: a loop for each kind, and a call where there is something to drop.)
        for each in (self.timers, self.namespaces.timers):
            for timers in each:
                if len(timers):
                    timers.clear()

    # -- looking at it, for metrics and harnesses --

    @property
    def num_keys(self) -> int:
        """The number of keys that have state or timers; where they have rows of both kinds, it may be more."""
        return max(len(self.rows), self.namespaces.num_keys)

    def get_keys(self) -> Iterator[Any]:
        """Return the keys that have state or timers."""
        yield from self.rows
        for key in self.namespaces.get_keys():
            if key not in self.rows:
                yield key

    def keys_with(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have something in a state of keys, in an order that depends on the keys alone.

        So it is the same in each worker, whatever its memory has seen. Flink's ``getKeys(state, namespace)``.

        Raises:
            ProgramError: the state is not declared.
        """
        state = self.declare(descriptor)
        keys = [key for key, row in self.rows.items() if state.is_readable(row)]
        known, ordered = self._ordered_keys
        if keys != known:
            ordered = _in_order(keys)
            self._ordered_keys = (keys, ordered)
        return ordered

    def contents(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """Return the contents of states that are not empty, by name: the very objects, to be looked at only.

        Args:
            namespace: whose states they are; None: the key's own.
        """
        table, row = self._look(key, namespace)
        return table.contents_of(row)

    def timestamps(self, key: Any, namespace: Any = None) -> dict[str, list[int]]:
        """Return the timestamps of a key's timers, or of those it has in a namespace, by the timers' name."""
        table, row = self._look(key, namespace)
        return table.timestamps_of(row)

    def _look(self, key: Any, namespace: Any) -> tuple[RowTable, Row]:
        """Return the row of a key, or of a key in a namespace, and the table; none is made."""
        address = key if namespace is None else namespace_address(key, namespace)
        table = self.table_of(address)
        return table, table.find(address) or table.blank

    def largest_keys(self, count: int = 3) -> list[tuple[Any, int]]:
        """Return the keys that take most memory, and about how many bytes each takes, without allocating much."""
        found = largest_rows(self.rows.items(), count) + largest_rows(self.namespaces.contents_by_key(), count)
        return sorted(found, key=lambda each: -each[1])[:count]

    # -- writing and restoring whole rows (the state log's side) --

    @property
    def tables(self) -> tuple[RowTable, RowTable]:
        """The rows of keys, and the rows of namespaces."""
        return self, self.namespaces

    def table_of(self, address: Any) -> RowTable:
        """Return the rows that have an address."""
        return self.namespaces if is_namespaced(address) else self

    def take_all_changes(self) -> tuple[list[list[Row]], dict[Any, int]]:
        """Return the rows that changed in this epoch and hold something; and the stale entries of those that are gone.

        Rows that hold nothing are dropped. The caller sets the marks of the rows that it writes.

        Returns:
            the rows of each table; and entries by address.
        """
        if self._cleaner is not None:
            self._cleaner.clean()
        removed: dict[Any, int] = {}
        changed = [table.take_changes(removed) for table in self.tables]
        if self._undo is not None:
            self._undo.forget_maps()
        for timers in (*self.timers, *self.namespaces.timers):
            timers.end_epoch()
        return changed, removed

    def rewrite_all(self) -> None:
        """Have all rows written with this epoch."""
        for table in self.tables:
            table.rewrite()
            table.is_renamed = False

    def begin_loading(self, without_timers: Collection[str]) -> None:
        """Take note of the slots that no timers need to be looked for in: millions of rows may come."""
        self._without_timers = without_timers

    def end_loading(self) -> None:
        """Take note that all rows have been loaded."""
        unused = [
            place
            for place, slot in enumerate(self.slots, FIRST_SLOT)
            if slot.name.startswith(STAMPS)
            and slot.name not in self._declared
            and not slot.name.startswith(STAMPS + LATE)
        ]
        if unused or self._cleaner is not None:
            self._made_cleaner().look_at_all(unused)


class OneThread:
    """The rows of keys as the states of async functions see them: other threads are refused.

    Attributes:
        thread: the thread that may use the states.
    """

    def __init__(self, table: KeyRows) -> None:
        self._table = table
        self.operator: str = table.operator
        self.thread: int | None = None
        self.touch: Callable[[], None] = table.touch
        self.touch_row: Callable[[Row], None] = table.touch_row
        self.row_in: Callable[[Any], Row] = table.row_in
        self.spec_of: Callable[[int], SlotSpec] = table.spec_of

    @property
    def row(self) -> Row:
        if get_ident() != self.thread:
            raise ProgramError(
                f"operator {self.operator!r} uses a state in another thread than its own: read the state before the"
                " call that runs in a thread, such as asyncio.to_thread(), and change it afterwards"
            )
        return self._table.row

    @property
    def current_key(self) -> Any:
        return self._table.key

    @property
    def now(self) -> int:
        return self._table.now


def _in_order(keys: list[Any]) -> list[Any]:
    """Return keys sorted by their hashes. The few keys that share a hash are sorted by their ``repr``."""
    hashes = list(map(stable_hash, keys))
    found: list[Any] = []
    together = groupby(sorted(range(len(keys)), key=hashes.__getitem__), hashes.__getitem__)
    for _, positions in together:
        same = [keys[position] for position in positions]
        found += sorted(same, key=repr) if len(same) > 1 else same
    return found
