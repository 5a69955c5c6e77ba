"""Operators whose state is plain data: a checkpoint holds values of declared types, and nothing else is read.

An operator is plain where the types of its key and of all its states are known and plain. That is found out from the
program alone, never from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from pillarbox._errors import TypeMismatchError
from pillarbox._state.chunks.large_collection import Elements
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.declared_types import check_column
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.addresses import format_address
from pillarbox._state.keys.key_note import KeyNote, family_of
from pillarbox._state.slots import FIRST_SLOT, Row, SlotSpec
from pillarbox._state.types.plain_types import NotPlainError, PlainKey, PlainType, Readable, type_of_state
from pillarbox._unpickle import Allowed


class PlainStates:
    """The types of an operator's states, all of which are plain.

    Attributes:
        types: the declared type of each state, by the name of its slot.
        allowed: what pickles of the state may name.
        records: the classes in the types, by module and name.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._key = PlainKey()
        self._types: dict[str, PlainType] = {}
        self._specs: dict[str, SlotSpec] = {}
        self.records: dict[tuple[str, str], type] = {}
        self.allowed: Allowed = {**self._key.allowed}
        for name, spec, declared in _declared(backend):
            self._types[name] = found = type_of_state(spec.kind, declared)
            self._specs[name] = spec
            self.allowed.update(found.allowed)
            self.records.update(found.records)
        # States declared after the restore have no type yet.
        self._late = Readable(self.allowed)

    @property
    def types(self) -> dict[str, str]:
        """The declared types by name of slot, as a head says them."""
        return {name: found.type.described for name, found in self._types.items()}

    def by_present_names(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return types by the names that slots have now, from those by the names that they had."""
        return {self._present_name(name): kind for name, kind in types.items()}

    def is_renamed(self, types: Mapping[str, str]) -> bool:
        """Return whether any slot of these has another name now."""
        return any(self._present_name(name) != name for name in types)

    def _present_name(self, name: str) -> str:
        table = self._backend.namespaces if name.startswith(self._backend.namespaces.lead) else self._backend
        plain = name.removeprefix(table.lead)
        return table.lead + table.former.get(plain, plain)

    def title_of(self, name: str) -> str:
        """Return a state for people, by the name of its slot."""
        return self._specs[name].title

    def check(self, table: RowTable, rows: list[Row]) -> None:
        """Check that keys, and states without a type, are plain data.

        Raises:
            TypeMismatchError: one is not.
        """
        if not rows:
            return
        keys = [row[1][0] for row in rows] if table.is_namespaced else list(map(itemgetter(1), rows))
        if not self._key.fits(keys):
            self._refuse_key(keys)
        for slot, spec in enumerate(table.slots, FIRST_SLOT):
            if spec.kind != "timers" and table.lead + spec.name not in self._types:
                check_column(table, spec, self._late, [row[1] for row in rows], list(map(itemgetter(slot), rows)))

    def check_elements(self, table: RowTable, spec: SlotSpec, elements: Elements) -> None:
        """Check that elements of a large map or list without a type are plain data.

        Raises:
            TypeMismatchError: one is not.
        """
        if table.lead + spec.name not in self._types:
            addresses = [elements.address] * len(elements.values)
            for column in (elements.keys or [], elements.values):
                check_column(table, spec, self._late, addresses, column)

    def _refuse_key(self, keys: list[Any]) -> None:
        for key in keys:
            if not self._key.fits([key]):
                raise TypeMismatchError(
                    f"operator {self._backend.operator!r}: the key {format_address(key)} ({type(key).__name__}) is no"
                    " plain value, as the type of the key says: let the key function, or what makes the column, return"
                    " one of Python's own classes, such as int(...) or str(...) of it"
                )


def reason_for_pickles(key: KeyNote | None, backend: KeyedStateBackend) -> str | None:
    """Return why the state of an operator is pickled; None: it is plain."""
    reason = reason_for_pickled_keys(key)
    if reason is not None:
        return reason
    for _, spec, declared in _declared(backend):
        try:
            type_of_state(spec.kind, declared)
        except NotPlainError as error:
            return f"{spec.title}: {error}"
    return None


def reason_for_pickled_keys(key: KeyNote | None) -> str | None:
    """Return why an operator with such keys has pickled state; None: as far as its keys go, it is plain."""
    if key is None:
        return "it works without keys, and only state under keys of a known type is plain"
    if not _key_is_known(key):
        return "the type of its key is not known: key by columns of a DataFrame or an output_type, or declare key_type"
    return None


def _key_is_known(key: KeyNote) -> bool:
    if "inputs" in key:
        return all(map(_key_is_known, key["inputs"]))
    types = key.get("types")
    return bool(types) and all(family_of(kind) or kind.startswith("struct<") for kind in types or ())


def _declared(backend: KeyedStateBackend) -> Iterator[tuple[str, SlotSpec, tuple[Any, ...]]]:
    for table in backend.tables:
        for spec, declared in table.declared_types():
            yield table.lead + spec.name, spec, declared
