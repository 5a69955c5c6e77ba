"""The heap keyed state backend: live Python objects, one row per key, and one per key and namespace.

Looking up the row once per record makes each state access one list index, and what a key owns is written, restored
and dropped together. Only the mailbox thread may touch any of it, and outside of ``state`` nobody knows what is in a
row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import is_
from typing import Any, NamedTuple

from pillarbox._errors import CheckpointMismatchError, OperatorError, ProgramError, shorten
from pillarbox._state.backend import SlotSpec, StateUndo
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from pillarbox._state.heap.rows import NEW, STAMPS, HeapRows, Row, stale_entry
from pillarbox._state.heap.shared_windows import HeapWindows
from pillarbox._state.heap.spaces import HeapSpaces
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.heap.ttl_cleaner import TtlCleaner
from pillarbox._state.heap.ttl_states import TTL_STATES
from pillarbox._state.heap.undo import Undo
from pillarbox._state.heap.undoable_states import NotingTimers, noting
from pillarbox._state.keys.addresses import LIST, OPERATOR, UNION, space_address
from pillarbox._state.keys.key_groups import key_group, stable_hash, subtask_of
from pillarbox._state.types.sizes import largest_rows
from pillarbox._time.internal_timer_service import KeyedTimers
from pillarbox._types import Types

__all__ = ["HeapKeyedStateBackend", "KeyOwner"]


class KeyOwner(NamedTuple):
    """The keys of a program that a backend may hold: those of one subtask."""

    subtask: int
    parallelism: int
    max_parallelism: int


class _Rows(dict[Any, Row]):
    """The row of each key that has state or timers. ``rows[key]`` makes the row where there is none."""

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[Any], Row]) -> None:
        self._create = create

    def __missing__(self, key: Any) -> Row:
        return self._create(key)


class HeapKeyedStateBackend(HeapRows):
    """All keyed state of one operator in one subtask; see :class:`KeyedStateBackend` for what others know of it.

    Args:
        owner: the subtask whose keys they are; None: it may hold any key.

    Attributes:
        rows: the row of each key that has state or timers.
        row: the current key's row.
        key: the current key.
        dirty: the rows that were changed in this epoch, by key.
        spaces: the rows of namespaces.
        now: the processing time of the epoch (epoch ms), by which state expires that has a time-to-live.
    """

    row: Row

    def __init__(self, operator: str, owner: KeyOwner | None = None) -> None:
        super().__init__(operator)
        # A single subtask has all keys.
        self._owner = owner if owner is not None and owner.parallelism > 1 else None
        self.rows: _Rows = _Rows(self._create_row)
        self.key: Any = None
        self.dirty: dict[Any, Row] = {}
        self.spaces: HeapSpaces = HeapSpaces(self)
        # The keys that were asked for last, and in their order: most often there are the same ones again.
        self._ordered_keys: tuple[list[Any], list[Any]] = ([], [])
        # In an operator that goes on when its function raises: where its states and timers note what is to be undone.
        self._undo: Undo | None = None
        self.now: int = 0
        self._cleaner: TtlCleaner | None = None
        self._without_timers: Collection[str] = ()

    # -- declaring states --

    def share_namespaces(self) -> None:
        """Let all keys share namespaces: what they have there is kept by namespace, and has its timers together."""
        assert self._undo is None, "what all keys share cannot be undone"
        self.spaces = HeapWindows(self)

    def get_state(self, descriptor: StateDescriptor, *, namespaced: bool = False, late: bool = False) -> Any:
        """Return the state that a descriptor declares; the same name means the same state."""
        rows: HeapRows = self
        if namespaced:
            self.spaces.is_of_keys = True
            rows = self.spaces
        state = rows.declare(descriptor, late=late)
        return state if self._undo is None else noting(state, descriptor, self._undo)

    def make_timed(self, name: str, slot: int, descriptor: StateDescriptor) -> Any:
        """Return a state with a time-to-live, whose stamps are in a slot of their own."""
        make, kind = TTL_STATES[descriptor.kind]
        stamp = Types.LONG()
        declared = (descriptor.declared_types[0], stamp) if kind == MapStateDescriptor.kind else (stamp,)
        stamps = self._slot_for(SlotSpec(STAMPS + name, kind), declared)
        state = make(self, slot, descriptor, stamps)
        if self._cleaner is None:
            self._cleaner = TtlCleaner(self)
        self._cleaner.states.append(state)
        return state

    def get_operator_state(self, descriptor: StateDescriptor, *, is_read: bool = False) -> Any:
        """Return the state that a descriptor declares, of the operator itself: of its subtask, and of no key."""
        state = self.spaces.declare(descriptor, current=self.spaces.operators_row)
        return state if is_read or self._undo is None else noting(state, descriptor, self._undo)

    def get_operator_list(self, descriptor: ListStateDescriptor, uid: str, *, union: bool) -> Any:
        """Return the list state that a descriptor declares, of an operator of the chain itself."""
        spaces = self.spaces
        if spaces.is_of_keys:
            raise ProgramError(
                f"operator {self.operator!r}: the state {descriptor.name!r} of the operator {uid!r} itself cannot lie"
                " beside the windows of keys: put rebalance() between the window and the function, or keep it in a"
                " state of keys"
            )
        lead = f"{UNION if union else LIST}{uid}/"
        return spaces.declare(descriptor, late=True, current=spaces.operators_row, lead=lead)

    def delete_operator_list(self, name: str, uid: str) -> None:
        """Delete the list state that a checkpoint holds under a name, of an operator of the chain itself.

        Raises:
            ProgramError: the function declares it.
        """
        spaces = self.spaces
        row = spaces.find(OPERATOR)
        for lead in (LIST, UNION):
            slot = f"{lead}{uid}/{name}"
            if spaces.is_asked_for(slot):
                raise ProgramError(
                    f"operator {self.operator!r} deletes the state {name!r} of the operator {uid!r} itself, and"
                    " declares it: do one of both"
                )
            if row is not None and slot in dict(spaces.contents_by_slot(row)):
                if row[0] >= 0:
                    spaces.touch_row(row)
                row[spaces.place_of(slot)] = None

    def check_operator_lists(self) -> None:
        """Refuse a checkpoint with list states of operators that nobody has asked for.

        Raises:
            CheckpointMismatchError: there is one.
        """
        row = self.spaces.find(OPERATOR)
        for name, content in {} if row is None else self.spaces.contents_by_slot(row):
            if name.startswith((LIST, UNION)) and not self.spaces.is_asked_for(name):
                kind = "union list" if name.startswith(UNION) else "list"
                raise CheckpointMismatchError(
                    f"the checkpoint holds the {kind} state {name.partition('/')[2]!r} (uid and name) with"
                    f" {len(content)} elements, which no function asks for in initialize_state(): run the program that"
                    " wrote it, set uid() of the operator to the one in the checkpoint, call delete_if_exists() of the"
                    " operator state store there, or start from a new one"
                )

    def create_timers(self, name: str, *, namespaced: bool = False) -> KeyedTimers:
        """Return the timers of one time domain of a timer service."""
        if namespaced:
            self.spaces.is_of_keys = True
            timers = self.spaces.create_timers(name)
        else:
            timers = HeapTimers(name, self, self.add_slot(SlotSpec(name, "timers")))
            self.timers.append(timers)
        return timers if self._undo is None else NotingTimers(timers, self._undo)

    def add_slot(self, spec: SlotSpec) -> int:
        """Add a slot to each row, and return its place."""
        blank = self.blank
        slot = super().add_slot(spec)
        if self.row is blank:
            self.row = self.rows[self.key]
        return slot

    def seal(self) -> None:
        """End the declaring of states, but for those that may come late."""
        super().seal()
        self.spaces.seal()

    @property
    def is_declared(self) -> bool:
        """Whether the operator has declared any state, or has timers."""
        return bool(self.slots or self.spaces.slots)

    # -- the current key and namespace --

    @property
    def current_key(self) -> Any:
        """The current key."""
        return self.key

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current one; there is no current namespace then."""
        self.row = self.rows[key]
        self.key = key
        spaces = self.spaces
        spaces.row = spaces.nowhere

    def leave_key(self) -> None:
        """Make no key the current one: states of keys are refused."""
        self.row = self.nowhere
        self.key = None
        self.spaces.row = self.spaces.nowhere

    def set_current_namespace(self, namespace: Any) -> None:
        """Make ``namespace`` the current one of the current key."""
        self.spaces.row = self.spaces.row_in(namespace)

    def set_current(self, key: Any, namespace: Any) -> None:
        """Make ``key`` and ``namespace`` the current ones, for all states and timers."""
        self.key = key
        self.row = self.rows[key] if self.slots else self.blank
        self.spaces.row = self.spaces.row_in(namespace)

    def select(self, key: Any, namespace: Any) -> None:
        """Make ``key`` and ``namespace`` the current ones, for states and timers of namespaces alone."""
        self.key = key
        self.row = self.nowhere
        spaces = self.spaces
        # (row_in, in line for what is nearly always so.)
        found = spaces.by_key.get(key)
        if type(found) is dict:
            row = found.get(namespace)
            spaces.row = spaces.row_in(namespace) if row is None else row
        elif found is not None and found[1][1] == namespace:
            spaces.row = found  # type: ignore[assignment]
        else:
            spaces.row = spaces.row_in(namespace)

    def get_namespaces(self) -> list[Any]:
        """Return the namespaces in which the current key has state or timers."""
        return self.spaces.namespaces_of(self.key)

    def drop_keys(self) -> None:
        """Drop the states and timers of all keys; the operator's own states stay."""
        self.leave_key()
        self.rows.clear()
        self.dirty.clear()
        self.spaces.drop_keys()
        for timers in (*self.timers, *self.spaces.timers):
            timers.clear()

    def _create_row(self, key: Any) -> Row:
        """Create the row of a key; it stays only if it holds something when the epoch ends."""
        if not self.slots:
            return self.blank  # nothing can ever be in it
        if self._owner is not None:
            self.check_owner(key)
        row = self.blank.copy()
        self.rows[key] = row
        self.dirty[key] = row
        return row

    def check_owner(self, key: Any) -> None:
        """Check that a key may have state here.

        Raises:
            OperatorError: the key belongs to another subtask: the key function returned another one when the record was
                routed. (Flink: "Key group ... is not in KeyGroupRange".)
        """
        if self._owner is not None:
            subtask, parallelism, max_parallelism = self._owner
            right = subtask_of(key_group(key, max_parallelism), max_parallelism, parallelism)
            if right != subtask:
                self.key = key
                raise OperatorError(
                    f"operator {self.operator!r}: the key {shorten(key)} belongs to subtask {right}, but a record with"
                    f" it came to subtask {subtask} of {parallelism}: the key function returned another key when the"
                    " record was sent; it has to return the same key each time (no random numbers, no clock, no"
                    " changing object)"
                )

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""
        row = self.row
        row[0] = -2 - row[0]  # (the stale entry, in line: each key that an epoch touches comes by here)
        self.dirty[self.key] = row

    def touch_row_of(self, key: Any, row: Row) -> None:
        """Note that a key's row is being changed, whatever it has been so far in this epoch."""
        if row[0] >= 0:
            row[0] = stale_entry(row[0])
            self.dirty[key] = row

    def every_row(self) -> Iterable[Row]:
        """Return all rows of keys."""
        return self.rows.values()

    def rewrite(self) -> None:
        """Have all rows written with this epoch, also those of namespaces."""
        for key, row in self.rows.items():
            self.touch_row_of(key, row)
        self.spaces.rewrite()
        self.is_renamed = self.spaces.is_renamed = False

    def allow_undo(self, appended: Collection[str] = (), unchanged: Collection[str] = ()) -> StateUndo:
        """Return what undoes what is done to states and timers that are declared from now on."""
        assert not self.is_declared and self._undo is None
        self._undo = undo = Undo(appended, unchanged)
        return undo

    # -- looking at it, for metrics and harnesses --

    @property
    def num_keys(self) -> int:
        """The number of keys that have state or timers; where they have rows of both kinds, it may be more."""
        return max(len(self.rows), self.spaces.num_keys)

    def get_keys(self) -> Iterator[Any]:
        """Return the keys that have state or timers."""
        yield from self.rows
        for key in self.spaces.get_keys():
            if key not in self.rows:
                yield key

    def keys_with(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have something in a state of keys, in an order that depends on the keys alone."""
        state = self.declare(descriptor)
        keys = [key for key, row in self.rows.items() if state.is_readable(row)]
        known, ordered = self._ordered_keys
        if keys != known:
            ordered = _in_order(keys)
            self._ordered_keys = (keys, ordered)
        return ordered

    def contents(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """Return the contents of states that are not empty, by name: the very objects, to be looked at only."""
        rows, row = self._look(key, namespace)
        return rows.contents_of(row)

    def timestamps(self, key: Any, namespace: Any = None) -> dict[str, list[int]]:
        """Return the timestamps of a key's timers, or of those it has in a namespace, by the timers' name."""
        rows, row = self._look(key, namespace)
        return rows.timestamps_of(row)

    def _look(self, key: Any, namespace: Any) -> tuple[HeapRows, Row]:
        """Return the row of a key, or of a key in a namespace, and whose it is; none is made."""
        if namespace is None:
            return self, self.rows.get(key, self.blank)
        return self.spaces, self.spaces.find(space_address(key, namespace)) or self.spaces.blank

    def largest_keys(self, count: int = 3) -> list[tuple[Any, int]]:
        """Return the keys that take most memory, and about how many bytes each takes, without allocating much."""
        found = largest_rows(self.rows.items(), count) + largest_rows(self.spaces.contents_by_key(), count)
        return sorted(found, key=lambda each: -each[1])[:count]

    # -- writing and restoring whole rows (the state log's side) --

    def find(self, address: Any) -> Row | None:
        """Return the row of an address."""
        row = self.rows.get(address)
        return self.spaces.find(address) if row is None else row

    def take_changes(self) -> tuple[dict[Any, Row], dict[Any, int]]:
        """Return the rows that changed in this epoch and hold something; and the stale entries of those that are gone.

        Both are by address, those of keys first. Rows that hold nothing are dropped. The caller sets the marks of the
        rows that it writes.
        """
        if self._cleaner is not None:
            self._cleaner.clean()
        changed, self.dirty = self.dirty, {}
        nothing = self.blank[1:]
        # By identity: a state may hold what does not compare to a bool, such as a numpy array.
        empty = [key for key, row in changed.items() if all(map(is_, row[1:], nothing))]
        removed = {key: stale_entry(changed[key][0]) for key in empty if changed[key][0] != NEW}
        for key in empty:
            del changed[key]
            del self.rows[key]
        self.spaces.take_changes(changed, removed)
        if self._undo is not None:
            self._undo.end_epoch()
        self._timers_are_written()
        return changed, removed

    def count_rows(self) -> int:
        """Return how many rows of keys there are."""
        return len(self.rows)

    def without_timers(self) -> list[str]:
        """Return the names of the slots of keys' timers that no row has any timer in."""
        return [timers.name for timers in self.timers if not timers.queue.size and timers.next_timestamp() is None]

    def begin_loading(self, without_timers: Collection[str]) -> None:
        """Take note of the slots that no timers need to be looked for in: millions of rows may come."""
        self._without_timers = without_timers

    def load(self, keys: list[Any], rows: list[Row]) -> None:
        """Take over rows, each key's once, during a cold start; :meth:`end_loading` ends it."""
        self.rows.update(zip(keys, rows))
        # Now the rows are in the processor's cache; of millions, each would have to be fetched once more.
        for timers in self.timers:
            if timers.name not in self._without_timers:
                timers.load(keys, rows)

    def end_loading(self) -> None:
        """Take note that all rows are there."""
        unused = [
            place
            for place, slot in enumerate(self.slots, self._lead)
            if slot.name.startswith(STAMPS) and slot.name not in self._declared
        ]
        if unused and self._cleaner is None:
            self._cleaner = TtlCleaner(self)
        if self._cleaner is not None:
            self._cleaner.restored(unused)

    def _timers_are_written(self) -> None:
        for timers in (*self.timers, *self.spaces.timers):
            timers.queue.end_epoch()


def _in_order(keys: list[Any]) -> list[Any]:
    """Return keys by their hashes; those of equal hashes, which are few, by what they look like."""
    hashes = list(map(stable_hash, keys))
    found: list[Any] = []
    together = groupby(sorted(range(len(keys)), key=hashes.__getitem__), hashes.__getitem__)
    for _, positions in together:
        same = [keys[position] for position in positions]
        found += sorted(same, key=repr) if len(same) > 1 else same
    return found
