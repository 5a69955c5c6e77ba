"""Computes the keys and subtasks of whole batches of records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import KeyTypeError, ProgramError, shorten, shorten_record
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.user_code import raise_at_record
from pillarbox._operators.functions.basic import KeySelector, check_plain
from pillarbox._rows import Row, column_to_list
from pillarbox._state.keys.key_groups import (
    hashes_of_column,
    hashes_of_tuples,
    owners,
    stable_hash,
)
from pillarbox._state.keys.key_note import KeyNote, function_note
from pillarbox._types.conversion import value_converter
from pillarbox._types.schema import resolve_schema
from pillarbox._types.type_information import TypeInformation

# Maximum number of cached key routes. A larger cache saves too little time for its memory.
_REMEMBERED = 1 << 17
_METHODS = frozenset({*dir(dict), *dir(Row)})


class Keying:
    """Computes the keys of a batch of records, with a function or from columns. A key of several columns is a tuple."""

    def __init__(
        self,
        key: Callable[[Any], Any] | KeySelector | str | Sequence[str],
        operator: str,
        key_type: TypeInformation | None = None,
    ) -> None:
        self.operator = operator
        self.key_type = key_type
        # Whether NaN is a key like any other, as in SQL. Possible only if no state is looked up by a Python object.
        self.nan_is_key = False
        self._convert = None if key_type is None else value_converter(key_type, f"operator {operator!r}: a key")
        self.columns: tuple[str, ...] | None = None
        self._captured: Captured[[Any], Any] | None = None
        if isinstance(key, str):
            self.columns = (key,)
        elif isinstance(key, KeySelector):
            check_plain(key, "get_key", asked_by="key_by()")
            self._captured = Captured(key.get_key)
        elif callable(key):
            check_plain(key, "get_key", asked_by="key_by()")
            self._captured = Captured(key)
        elif isinstance(key, Sequence) and key and all(isinstance(name, str) for name in key):
            self.columns = tuple(key)
        else:
            raise ProgramError(f"key_by() takes a function or column names, not {shorten(key)}")

    def with_nan(self) -> Keying:
        changed = copy.copy(self)
        changed.nan_is_key = True
        return changed

    def note(self) -> KeyNote:
        if self.columns is not None:
            note = KeyNote(columns=list(self.columns))
        else:
            assert self._captured is not None
            note = function_note(self._captured.function)
        if self.declared_types is not None:
            note["types"] = self.declared_types
        return note

    @property
    def declared_types(self) -> list[str] | None:
        if self.key_type is None or self.key_type.data_type is None:
            return None
        return [field.dataType.simpleString() for field in resolve_schema(self.key_type).fields]

    def keeps_keys(self, records: Records) -> bool:
        """Return whether the keys are column values. Such keys are the same before and after the shuffle."""
        return self.columns is not None and isinstance(records, ArrowRecords)

    def keys_of(self, records: Records) -> list[Any]:
        """Return each record's key, converted to the declared type. Raises if a key is missing or has a wrong type."""
        keys = self._keys_of(records)
        return keys if self._convert is None else list(map(self._convert, keys))

    def _keys_of(self, records: Records) -> list[Any]:
        if self.columns is None:
            assert self._captured is not None
            return self._apply(self._captured.function, records.values)
        if isinstance(records, ArrowRecords):
            lists = [column_to_list(self.column_of(records.batch, name)) for name in self.columns]
            return lists[0] if len(lists) == 1 else list(zip(*lists))
        values = records.values
        if not values:
            return []
        parts = [self._column_of_records(values, name) for name in self.columns]
        return parts[0] if len(parts) == 1 else list(zip(*parts))

    def hashes_of_columns(self, records: Records, hashes: dict[Any, int]) -> npt.NDArray[np.uint64] | None:
        """Return the hash of each row's key, or None if the caller must hash the keys one by one.

        ``hashes`` is a cache, which the call may extend.
        """
        if self.key_type is not None or self.columns is None or not isinstance(records, ArrowRecords):
            return None
        columns = (self.column_of(records.batch, name) for name in self.columns)
        hashes_by_column = [hashes_of_column(column, hashes, nan_is_key=self.nan_is_key) for column in columns]
        parts = [part for part in hashes_by_column if part is not None]
        if len(parts) < len(hashes_by_column):
            return None
        return parts[0] if len(parts) == 1 else hashes_of_tuples(parts)

    def column_of(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise ProgramError(
                f"operator {self.operator!r}: there is no column {name!r} to key by; the columns are"
                f" {', '.join(batch.schema.names)}"
            )
        return batch.column(position)

    def _column_of_records(self, values: list[Any], name: str) -> list[Any]:
        # Among records of several types, one type may have a method with the column's name.
        if name not in _METHODS or len(set(map(type, values))) == 1:
            try:
                keys = list(map(self._getter(values[0], name), values))
            except Exception:
                keys = []
            if len(keys) == len(values):
                return keys
        return self._apply(lambda value: self._getter(value, name)(value), values)

    def _getter(self, value: Any, name: str) -> Callable[[Any], Any]:
        if isinstance(value, Row):
            # Attributes are faster, but some row attributes, such as `count`, are not columns.
            return attrgetter(name) if name in value._fields and hasattr(type(value), name) else itemgetter(name)
        if isinstance(value, dict):
            return itemgetter(name)
        return attrgetter(name)

    def _apply(self, function: Any, values: list[Any]) -> list[Any]:
        pending = iter(values)
        try:
            keys = list(map(function, pending))
            if len(keys) < len(values):
                raise RuntimeError("the function raised StopIteration")
            return keys
        except BaseException as error:
            where = f"operator {self.operator!r}: the key function"
            raise_at_record(error, where, values, pending, operator=self.operator)


class KeyingRouter:
    """Computes the receiving subtask of each record from its key group."""

    def __init__(self, keying: Keying, parallelism: int, max_parallelism: int) -> None:
        self._keying = keying
        self._max_parallelism = max_parallelism
        self._owners = owners(max_parallelism, parallelism)
        self._owner_array = np.array(self._owners, dtype=np.int64)
        self._routes: dict[Any, int] = {}
        self._hashes: dict[Any, int] = {}

    def subtasks_of(self, records: Records) -> npt.NDArray[np.int64] | list[int]:
        if len(self._hashes) >= _REMEMBERED:
            self._hashes.clear()
        hashes = self._keying.hashes_of_columns(records, self._hashes)
        if hashes is not None:
            subtasks: npt.NDArray[np.int64] = self._owner_array[hashes % np.uint64(self._max_parallelism)]
            return subtasks
        keys = self._keying.keys_of(records)
        return self._route(list(map(_nan_as_null, keys)) if self._keying.nan_is_key else keys, records)

    def _route(self, keys: list[Any], records: Records) -> list[int]:
        routes = self._routes
        try:
            return [routes[key] if key in routes else self._find(key) for key in keys]
        except TypeError as error:
            for record, key in zip(records.values, keys):
                try:
                    stable_hash(key)
                    hash(key)
                except TypeError as cause:
                    reason = "which cannot be hashed the same way in every process"
                    advice = "return a string, a number, a date, a tuple or a frozen dataclass of them"
                    if "NaN" in str(cause):
                        reason = "which is or contains NaN: NaN equals nothing, so no two records would share its state"
                        advice = "return None for it, or filter such records out"
                    raise KeyTypeError(
                        f"operator {self._keying.operator!r}: the record {shorten_record(record)} has the key"
                        f" {shorten(key)} of type {type(key).__qualname__}, {reason}: {advice}"
                    ) from error
            raise

    def _find(self, key: Any) -> int:
        owner = self._owners[stable_hash(key) % self._max_parallelism]
        if len(self._routes) >= _REMEMBERED:
            self._routes.clear()
        self._routes[key] = owner
        return owner


def _nan_as_null(key: Any) -> Any:
    """Replace NaN with None in a key, because NaN and null have the same hash in a column."""
    if isinstance(key, tuple):
        return tuple(map(_nan_as_null, key))
    return None if isinstance(key, float) and key != key else key
