"""Finds the classes that pickled state names: by import, or where the program says that they have moved to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, EnumMeta, Flag
from typing import Any

from pillarbox._state.types.opaque import Distinct, Opaque, loads_inert
from pillarbox._state.types.records import (
    RecordError,
    compared_fields,
    field_names,
    is_pickled_by_places,
    is_record,
    optional_fields,
)
from pillarbox._unpickle import Allowed, find_global


class ImportedNames(Allowed):
    """Names by which anything may be imported.

    Args:
        moved: the classes that have moved, by their former module and name.

    Attributes:
        records: the dataclasses and named tuples that were named since :meth:`forget`, by module and name.
        has_moved: whether any that has moved was named since.
    """

    def __init__(self, moved: Mapping[tuple[str, str], type]) -> None:
        super().__init__()
        self._moved = moved
        self._known: dict[tuple[str, str], Any] = {}
        self._named: dict[tuple[str, str], type] = {}  # since the last check
        self.records: dict[tuple[str, str], type] = {}
        self.has_moved: bool = False

    def forget(self) -> None:
        """Forget which were named so far."""
        self.records = {}
        self.has_moved = False

    def get(self, where: Any, default: Any = None) -> Callable[[], Any]:
        """Return what finds a thing by its name.

        Raises:
            UnpickleGlobalError: (when it is called) there is no such thing.
        """
        return lambda: self._find(where)

    def _find(self, where: tuple[str, str]) -> Any:
        found = self._known.get(where)
        if found is None:
            found = self._known[where] = self._moved.get(where) or find_global(*where)
        self.has_moved = self.has_moved or where in self._moved
        if isinstance(found, type) and is_record(found):
            self.records[where] = self._named[where] = found
        return found

    def check_places(self, payload: bytes | memoryview) -> None:
        """Check the values of the pickle that was read last whose fields are told apart by their places alone.

        Nothing of the pickle is run for that: code of other classes could not take what stands for these values.

        Raises:
            RecordError: there are more than the class has fields now; Python takes the first of them.
        """
        named, self._named = self._named, {}
        counted = {where: _counting() for where, record in named.items() if is_pickled_by_places(record)}
        if not counted:
            return
        loads_inert(payload, counted)
        for where, counting in counted.items():
            record = named[where]
            if counting.longest > len(field_names(record)):
                raise RecordError(
                    record,
                    f"has {len(field_names(record))} fields, and the value was written with {counting.longest}, of"
                    " which nothing says the names: keep the fields that it had",
                )

    def names_of(self, record: type) -> list[tuple[str, str]]:
        """Return the names that pickles have had for a class so far."""
        return [where for where, found in self._known.items() if found is record]

    def fields_of_keys(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the fields by which objects of the classes that were named are compared, by their names."""
        found = {where: compared_fields(record) for where, record in self.records.items()}
        return {where: fields for where, fields in found.items() if fields is not None}

    def is_misfit(self, made: Opaque | type[Opaque]) -> bool:
        """Return whether an object cannot be one of its class as that is now, as far as that can be told."""
        if not isinstance(made, Opaque):
            return False
        if made.where == ("builtins", "getattr"):  # a member of an enum, by its name
            of, name, *_ = *made.args, None, None
            found = self._known.get(of.where) if isinstance(of, type) and issubclass(of, Opaque) else None
            return isinstance(found, EnumMeta) and name not in found.__members__
        found = self._known.get(made.where)
        if isinstance(found, EnumMeta):
            members: list[Enum] = list(found)
            values = [member.value for member in members]
            is_plain = len(made.args) == 1 and type(made.args[0]) in _PLAIN and not issubclass(found, Flag)
            return is_plain and not any(type(each) in _PLAIN and each == made.args[0] for each in values)
        if not isinstance(found, type) or not is_record(found):
            return False
        names = field_names(found)
        if issubclass(found, tuple):
            return not len(names) - len(optional_fields(found)) <= len(made.args) <= len(names)
        slots = made._state[1] if isinstance(made._state, tuple) and len(made._state) == 2 else None
        return isinstance(slots, dict) and not slots.keys() <= set(names)


_PLAIN = frozenset({bool, int, float, str, bytes})


class _Counting(Distinct):
    longest: int = 0


def _counting() -> type[_Counting]:
    """Return a class that notes the most fields that any value of a class was written with."""

    class Counting(_Counting):
        def __setstate__(self, state: Any) -> None:
            Counting.longest = max(Counting.longest, len(state))

    return Counting
