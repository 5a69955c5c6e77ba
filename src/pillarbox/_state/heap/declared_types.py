"""The declared types of states, and the check of their values.

A state is checked if its type is declared and plain, wherever the function runs: before an epoch's changes are written,
at the end of an epoch that writes nothing, before batch mode drops a key, and after a call of a test harness.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox._errors import TypeMismatchError
from pillarbox._state.chunks.large_collection import Elements
from pillarbox._state.keys.addresses import format_owner, is_namespaced
from pillarbox._state.slots import FIRST_SLOT, Row, SlotSpec
from pillarbox._state.types.plain_types import ListOf, MapOf, NotPlainError, PlainType, type_of_state

if TYPE_CHECKING:
    from pillarbox._state.heap.rows import RowTable


class DeclaredTypes:
    """The plain types of the states in the rows of a table."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._slots = 0
        self._types: list[tuple[int, SlotSpec, PlainType]] = []

    @property
    def types(self) -> list[tuple[int, SlotSpec, PlainType]]:
        """The place in the rows, the slot and the type of each state that has a plain one."""
        if self._slots < len(self._table.slots):  # some states are declared late
            self._slots = len(self._table.slots)
            declared = {spec.name: _plain(spec, types) for spec, types in self._table.declared_types()}
            self._types = [
                (place, spec, found)
                for place, spec in enumerate(self._table.slots, FIRST_SLOT)
                if (found := declared.get(spec.name)) is not None
            ]
        return self._types

    def check(self, rows: list[Row], only: Collection[str] | None = None) -> None:
        """Check the states of rows.

        Args:
            only: the names of the slots, with their table's lead; None: all of them.

        Raises:
            TypeMismatchError: a value is not of its state's type.
        """
        for place, spec, declared in self.types if rows else ():
            if only is None or self._table.lead + spec.name in only:
                check_column(self._table, spec, declared, [row[1] for row in rows], list(map(itemgetter(place), rows)))

    def check_each(self, rows: list[Row]) -> None:
        """Check the states of rows, of which there are few: as :meth:`check`, in less time."""
        for place, spec, declared in self.types:
            for row in rows:
                if not declared.takes(row[place]):
                    check_column(self._table, spec, declared, [row[1]], [row[place]])

    def check_elements(self, spec: SlotSpec, elements: Elements) -> None:
        """Check elements of a large map or list.

        Raises:
            TypeMismatchError: an element is not of its type.
        """
        declared = next((found for _, each, found in self.types if each == spec), None)
        addresses = [elements.address] * len(elements.values)
        if isinstance(declared, MapOf):
            check_column(self._table, spec, declared.key, addresses, elements.keys or [])
            check_column(self._table, spec, declared.value, addresses, elements.values)
        elif isinstance(declared, ListOf):
            check_column(self._table, spec, declared.element, addresses, elements.values)


def check_column(table: RowTable, spec: SlotSpec, declared: PlainType, addresses: list[Any], column: list[Any]) -> None:
    """Check values of a state, of the rows with these addresses.

    Raises:
        TypeMismatchError: a value is not of the type.
    """
    if declared.fits(column):
        return
    for address, value in zip(addresses, column):
        if not declared.fits([value]):
            error = TypeMismatchError(
                f"operator {table.operator!r}: {spec.title} of {format_owner(address)} does not fit its declared type:"
                f" {declared.misfit(value)}; give such a value, or declare another type (Types.PICKLED_BYTE_ARRAY()"
                " takes all)"
            )
            error.at(operator=table.operator, key=address[0] if is_namespaced(address) else address)
            raise error
    raise AssertionError("a column does not fit, and each value does")


def _plain(spec: SlotSpec, declared: tuple[Any, ...]) -> PlainType | None:
    """Return the type of a state; None: none is declared, or no plain one."""
    try:
        return None if spec.kind == "timers" else type_of_state(spec.kind, declared)
    except NotPlainError:
        return None
