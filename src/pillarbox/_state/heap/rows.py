"""Rows on the heap: what their slots hold, which one is current, and which ones the epoch has changed.

There are two tables of them: the rows of keys, and the rows of namespaces. Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import tzinfo
from operator import is_, itemgetter
from typing import Any, NoReturn

from pillarbox._errors import CheckpointMismatchError, ProgramError, shorten
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._state.heap.declared_types import DeclaredTypes
from pillarbox._state.heap.processing_timers import ProcessingTimers
from pillarbox._state.heap.states import STATES, CurrentRow
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.keys.map_keys import restore_maps
from pillarbox._state.slots import FIRST_SLOT, KEPT, LATE, NEW, STAMPS, STATE, Row, SlotSpec, stale_entry, state_name
from pillarbox._state.state_descriptor import StateDescriptor


class NoRow(list[Any]):
    """Stands for the current row as long as there is none."""

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def _refuse(self, slot: Any, value: Any = None) -> NoReturn:
        table = self._table
        raise ProgramError(
            f"operator {table.operator!r} uses {table.spec_of(slot).title} where there is no current"
            f" {table.hint_without_row}"
        )

    __getitem__: Any = _refuse
    __setitem__: Any = _refuse


class RowTable:
    """The rows of keys, or the rows of namespaces.

    Attributes:
        operator: the operator's name.
        zone: the time zone of timers that are set with naive datetimes; None: they are refused.
        row: the current row.
        dirty: the rows that were changed in this epoch.
        slots: what the slots of each row hold.
        types: the declared types of the states in them.
        blank: a row that holds nothing.
        timers: the timers in the slots.
        former: the names that slots have now, by those that they had.
        deleted: the names of slots of states that the program deletes.
        is_renamed: whether a state got another name since rows were restored: all have to be rewritten then.
        is_namespaced: whether they belong to namespaces.
        lead: what leads the names of slots where the names of both tables stand together.
        hint_without_row: what there is none of where there is no current row, for errors.
    """

    is_namespaced: bool = False
    lead: str = ""
    hint_without_row: str = (
        "key: open() only declares states, close() is too late; read and change them when a record or a timer comes"
    )

    def __init__(self, operator: str, zone: tzinfo | None = None) -> None:
        self.operator: str = operator
        self.zone: tzinfo | None = zone
        self.slots: list[SlotSpec] = []
        self.timers: list[HeapTimers] = []
        self.blank: Row = [NEW, None]
        self.nowhere: NoRow = NoRow(self)
        self.row: Row = self.nowhere
        # The rows as their states see them.
        self.seen: Any = self
        self.dirty: list[Row] = []
        self.types: DeclaredTypes = DeclaredTypes(self)
        self._states: dict[str, Any] = {}
        self._declared: dict[str, tuple[Any, ...]] = {}
        self._sealed = False
        # The present name of a slot, by its former name; and the names of deleted slots.
        self.former: dict[str, str] = {}
        self.is_renamed: bool = False
        self.deleted: set[str] = set()
        # The slots that no timers need to be looked for in during a cold start.
        self._without_timers: Collection[str] = ()

    # -- rows --

    @property
    def current_key(self) -> Any:
        """The current key."""
        raise NotImplementedError

    def every_row(self) -> Iterable[Row]:
        """Return all rows."""
        raise NotImplementedError

    def count_rows(self) -> int:
        """Return how many rows there are."""
        raise NotImplementedError

    def find(self, address: Any) -> Row | None:
        """Return the row of an address of this table; None: there is none."""
        raise NotImplementedError

    def enter(self, address: Any) -> Row:
        """Make the key, and the namespace, of an address the current ones; return its row, made where there is none."""
        raise NotImplementedError

    def row_in(self, namespace: Any) -> Row:
        """Return the current key's row in a namespace, made where there is none."""
        raise ProgramError(f"operator {self.operator!r}: a state of keys has no namespaces")

    def _put(self, rows: Collection[Row]) -> None:
        """Put rows into their places, which are empty or have other rows with the same addresses."""
        raise NotImplementedError

    def _remove(self, row: Row) -> None:
        """Take a row out of its place."""
        raise NotImplementedError

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""
        row = self.row
        row[0] = -2 - row[0]  # (the stale entry, in line: each key that an epoch touches comes by here)
        self.dirty.append(row)

    def touch_row(self, row: Row) -> None:
        """Note that a row, unchanged so far in this epoch, is being changed."""
        row[0] = -2 - row[0]
        self.dirty.append(row)

    def rewrite(self) -> None:
        """Have all rows written with this epoch."""
        for row in sorted((row for row in self.every_row() if row[0] >= 0), key=itemgetter(0)):
            self.touch_row(row)

    def take_changes(self, removed: dict[Any, int]) -> list[Row]:
        """Return the rows that changed in this epoch and hold something; those that hold nothing are dropped.

        Args:
            removed: gets the stale entries of those that are gone, by address.
        """
        dirty, self.dirty = self.dirty, []
        nothing = self.blank[FIRST_SLOT:]
        # By identity: a state may hold what does not compare to a bool, such as a numpy array.
        changed = [row for row in dirty if not all(map(is_, row[FIRST_SLOT:], nothing))]
        for row in dirty if len(changed) < len(dirty) else ():
            if not self.holds_something(row):
                self._remove(row)
                if row[0] != NEW:
                    removed[row[1]] = stale_entry(row[0])
        return changed

    def load(self, addresses: list[Any], rows: list[Row]) -> None:
        """Take over rows, each once, during a cold start."""
        for slot, spec in enumerate(self.slots, FIRST_SLOT):
            if spec.kind == MapStateDescriptor.kind:
                restore_maps(rows, slot)
        self._put(rows)
        # Now the rows are in the processor's cache; of millions, each would have to be fetched once more.
        for timers in self.timers:
            if timers.name not in self._without_timers:
                timers.load(addresses, rows)

    # -- slots --

    def declare(
        self, descriptor: StateDescriptor, *, late: bool = False, current: CurrentRow | None = None, lead: str = ""
    ) -> Any:
        """Return the state that a descriptor declares; the same name means the same state.

        Args:
            late: it may be asked for at any time; else only before rows are read.
            current: tells which row it is in; by default the current one.
            lead: what leads the name of its slot; by default that says only whether it is late.
        """
        lead = lead or (LATE if late else STATE)
        name = f"{lead}{descriptor.name}"
        state = self._states.get(name)
        self._take_former_names(lead, descriptor)
        if state is None:
            state = self._states[name] = self._new_state(name, descriptor, late, current or self.seen)
        elif self._kind_of(name) != descriptor.kind:
            raise ProgramError(
                f"operator {self.operator!r} declares the state {descriptor.name!r} twice:"
                f" as a {self._kind_of(name)} state and as a {descriptor.kind} state"
            )
        elif descriptor.ttl_config not in (None, getattr(state, "ttl", None)):
            raise ProgramError(
                f"operator {self.operator!r} declares the state {descriptor.name!r} twice, with another time-to-live:"
                f" {descriptor.ttl_config}"
            )
        return state

    def _take_former_names(self, lead: str, descriptor: StateDescriptor) -> None:
        name = f"{lead}{descriptor.name}"
        taken = [name] if name in self.former or name in self.deleted else []
        for former in descriptor.former_names:
            other = f"{lead}{former}"
            if other in self._states or self.former.get(other, name) != name:
                taken.append(other)
            self.former[other], self.former[STAMPS + other] = name, STAMPS + name
            if other not in taken:
                self._rename(other, SlotSpec(name, descriptor.kind))
                stamps = self._kind_of(STAMPS + other)
                if stamps is not None:
                    self._rename(STAMPS + other, SlotSpec(STAMPS + name, stamps))
        if taken:
            raise ProgramError(
                f"operator {self.operator!r} has several uses for the name {taken[0].rpartition('/')[2]!r} of a state:"
                " a state that was renamed or deleted leaves its name to no other one as long as the program says so"
            )

    def _rename(self, former: str, now: SlotSpec) -> None:
        """Rename a state that was restored already, as those are that may be asked for late."""
        kind = self._kind_of(former)
        if kind is None:
            return
        place = self.place_of(former)
        if self._kind_of(now.name) is not None:
            # It was renamed before, and there are still rows in the log that had nothing in it.
            if any(row[place] is not None for row in self.every_row()):
                raise self._both(former, now.name)
            return
        if kind != now.kind:
            raise self._other_kind(SlotSpec(former, kind), now.kind)
        self.slots[place - FIRST_SLOT] = now
        self.is_renamed = True

    def delete_if_exists(self, name: str) -> None:
        """Delete the state of keys that a checkpoint holds under a name, and its stamps.

        Raises:
            ProgramError: the program declares it, or records are processed already.
        """
        slot = f"{STATE}{name}"
        if slot in self._states or slot in self.former or slot in self.former.values() or self._sealed:
            why = "while records are processed" if self._sealed else "and declares it, or has renamed it"
            raise ProgramError(
                f"operator {self.operator!r} deletes the state {name!r} {why}: call delete_if_exists() in open(), for"
                " a state that the program has no more"
            )
        self.deleted |= {slot, STAMPS + slot}

    def _new_state(self, name: str, descriptor: StateDescriptor, late: bool, current: CurrentRow) -> Any:
        if self._sealed and not late:
            raise ProgramError(
                f"operator {self.operator!r} asks for the state {descriptor.name!r} while records are processed:"
                " declare all states in open()"
            )
        make = self._class_of(descriptor.kind, late=late)
        if make is None:
            raise ProgramError(f"{shorten(descriptor)} is not a descriptor of keyed state")
        if descriptor.ttl_config is not None and current is not self.seen:
            self.refuse_time_to_live(descriptor)
        slot = self._slot_for(SlotSpec(name, descriptor.kind), descriptor.declared_types)
        if descriptor.ttl_config is not None:
            return self.make_timed(name, slot, descriptor)
        return make(current, slot, descriptor)

    def _class_of(self, kind: str, *, late: bool) -> Any:
        """Return the class of states of a kind; None: there is no such kind."""
        return STATES.get(kind)

    def _slot_for(self, spec: SlotSpec, declared: tuple[Any, ...]) -> int:
        """Return the place of a slot, which a checkpoint may have already; else it is added."""
        kind = self._kind_of(spec.name)
        if kind is None:
            slot = self.add_slot(spec)
        elif kind == spec.kind:
            slot = self.place_of(spec.name)
        else:
            raise self._other_kind(SlotSpec(spec.name, kind), spec.kind)
        self._declared[spec.name] = declared
        return slot

    def make_timed(self, name: str, slot: int, descriptor: StateDescriptor) -> Any:
        """Return a state with a time-to-live."""
        self.refuse_time_to_live(descriptor)

    def refuse_time_to_live(self, descriptor: StateDescriptor) -> NoReturn:
        """Refuse the time-to-live of a state that is not of a key alone."""
        raise ProgramError(
            f"operator {self.operator!r}: the {descriptor.kind} state {descriptor.name!r} has a time-to-live, which is"
            " for states of keys: not for those of windows and triggers, which go with their window, nor for broadcast"
            " state and other states of the operator itself"
        )

    def add_slot(self, spec: SlotSpec) -> int:
        """Add a slot to each row, and return its place."""
        self.slots.append(spec)
        for row in self.every_row():
            row.append(None)
        self.blank = [*self.blank, None]
        return len(self.blank) - 1

    def add_timers(self, name: str) -> HeapTimers:
        """Return the timers of one time domain, in a slot of their own."""
        kind = ProcessingTimers if name.endswith("/processing") else HeapTimers
        timers = kind(name, self, self.add_slot(SlotSpec(name, "timers")))
        self.timers.append(timers)
        return timers

    def seal(self) -> None:
        """End the declaring of states, but for those that may come late."""
        self._sealed = True

    def declared_types(self) -> Iterable[tuple[SlotSpec, tuple[Any, ...]]]:
        """Return what is declared of the types of states, as far as they were asked for: of maps two."""
        return [(slot, self._declared[slot.name]) for slot in self.slots if slot.name in self._declared]

    def spec_of(self, place: int) -> SlotSpec:
        """Return what is in a place of the rows."""
        return self.slots[place - FIRST_SLOT]

    def place_of(self, name: str) -> int:
        """Return the place of a slot in the rows."""
        return next(place for place, slot in enumerate(self.slots, FIRST_SLOT) if slot.name == name)

    def _kind_of(self, name: str) -> str | None:
        return next((slot.kind for slot in self.slots if slot.name == name), None)

    def holds_something(self, row: Row) -> bool:
        """Return whether a row has any state or timer."""
        return not all(map(is_, row[FIRST_SLOT:], self.blank[FIRST_SLOT:]))

    def contents_by_slot(self, row: Row) -> Iterable[tuple[SlotSpec, Any]]:
        """Return what a row holds, by its slots."""
        return [(slot, value) for slot, value in zip(self.slots, row[FIRST_SLOT:]) if value is not None]

    def declares(self, name: str) -> bool:
        """Return whether the program has asked for the state with this name of its slot."""
        return name in self._states

    def contents_of(self, row: Row) -> dict[str, Any]:
        """Return the states of a row that are not empty, by name."""
        return {
            state_name(slot.name): value
            for slot, value in self.contents_by_slot(row)
            if slot.kind != "timers" and not slot.name.startswith(STAMPS)
        }

    def timestamps_of(self, row: Row) -> dict[str, list[int]]:
        """Return the timestamps of the timers of a row, in order, by the timers' name."""
        return {
            slot.name: sorted(value) if type(value) is set else [value]
            for slot, value in self.contents_by_slot(row)
            if slot.kind == "timers"
        }

    # -- restoring --

    def adopt_slots(self, written: list[SlotSpec]) -> bool:
        """Compare the slots of restored rows with those that the program declares, and make room for those to come.

        Returns:
            whether the program has renamed or deleted any of them.

        Raises:
            CheckpointMismatchError: a restored state is not declared, or with another kind.
        """
        changed = False
        names = {slot.name for slot in written}
        for slot in sorted(written, key=lambda slot: slot.kind == "timers"):  # a state's name says more to people
            if slot.name in self.deleted:
                changed = True
                continue
            now = SlotSpec(self.former.get(slot.name, slot.name), slot.kind)
            if now.name != slot.name:
                if now.name in names:
                    raise self._both(slot.name, now.name)
                changed = True
            kind = self._kind_of(now.name)
            if kind is None and now.name.startswith(KEPT):
                self.add_slot(now)
            elif kind is None:
                raise self._undeclared(slot)
            elif kind != slot.kind:
                raise self._other_kind(slot, kind)
        return changed

    def _undeclared(self, slot: SlotSpec) -> CheckpointMismatchError:
        name, ways = slot.name, "run the program that wrote it"
        if slot.kind != "timers":
            name = state_name(slot.name)
            ways += f"; if it has another name now, say so with renamed_from({name!r}) of its descriptor"
            if slot.name.startswith(STATE):
                ways += f"; if it may go, call runtime_context.delete_if_exists({name!r}) in open()"
        return CheckpointMismatchError(
            f"the checkpoint holds {slot.kind} {name!r} of operator {self.operator!r}, which the program does not"
            f" declare in open(): {ways}; if the operator keeps something else now, such as windows of another kind,"
            " give it another uid() and start from a savepoint with allow_non_restored_state=True; or start from a new"
            " checkpoint"
        )

    def _both(self, former: str, name: str) -> CheckpointMismatchError:
        former, name = former.rpartition("/")[2], name.rpartition("/")[2]
        return CheckpointMismatchError(
            f"the checkpoint holds a state {name!r} of operator {self.operator!r}, and one with its former name"
            f" {former!r}: declare both, or delete one of them with runtime_context.delete_if_exists()"
        )

    def _other_kind(self, written: SlotSpec, declared: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"the checkpoint holds {state_name(written.name)!r} of operator {self.operator!r} as"
            f" {written.kind} state, the program declares it as {declared} state: give it another name, and delete the"
            " old one with runtime_context.delete_if_exists()"
        )

    def positions(self, written: list[SlotSpec]) -> list[int] | None:
        """Return for each slot its position in written rows (0 where they have none); None: they are the same."""
        if written == self.slots:
            return None
        former = self.former
        found = {former.get(slot.name, slot.name): position for position, slot in enumerate(written, 1)}
        return [found.get(slot.name, 0) for slot in self.slots]
