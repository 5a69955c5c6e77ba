"""State that users make: from the columns of a table to the rows of an operator's table in a savepoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pillarbox._errors import KeyTypeError, ProgramError, TypeMismatchError, describe, shorten
from pillarbox._rows import column_to_list
from pillarbox._state.chunks.head import Layout
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.key_groups import hashes_of_keys
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.savepoint.column_types import is_typed
from pillarbox._state.savepoint.manifest import OperatorTable, columns_of, type_of_keys
from pillarbox._state.savepoint.table import Table
from pillarbox._state.slots import NEW, STATE
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.types.plain_types import NotPlainError, PlainType, type_of_state

_TIMERS = "user-timers"
_DOMAINS = ("event", "processing")
#: The slots of the timers that a user's function registers.
TIMER_SLOTS = [(f"{_TIMERS}/{domain}", "timers") for domain in _DOMAINS]


def new_operator_table(
    uid: str, keys: Mapping[str, str], layout: Layout, types: Mapping[str, str], max_parallelism: int
) -> OperatorTable:
    """Return the manifest's entry for an operator that no program has written yet.

    Args:
        keys: maps the key's columns to Spark's names of their types.
        layout: the slots of rows of keys.
        types: the declared types of slots.
        max_parallelism: the number of key groups.
    """
    key = KeyNote(columns=list(keys), types=list(keys.values()))
    return OperatorTable(
        uid=uid,
        parallelism=1,
        max_parallelism=max_parallelism,
        key=key,
        key_type=type_of_keys([key]),
        program=(),
        version=1,
        types=dict(types),
        layout=tuple(layout),
        space_layout=(),
        columns=tuple(columns_of(layout, [], types, [])),
    )


def encode_rows(operator: OperatorTable, keys: list[Any], slots: list[list[Any]]) -> Iterator[pa.RecordBatch]:
    """Return the rows of an operator's table. ``slots`` has a column for each slot in its layout."""
    rows = [[NEW, *values] for values in zip(*slots)] if slots else [[NEW] for _ in keys]
    view = ViewedRows(keys, None, list(operator.layout), rows, np.zeros(len(keys)))
    return Table(operator).encode([view], 0)


@dataclass(frozen=True)
class NewTable:
    """The table of an operator that no program has written yet: keys, states, and timers of its keys.

    Attributes:
        operator: what a manifest says of it.
        keys: the columns of the key.
        types: the type of each state, whose column has its name.
        timers: the column of timers; None: there are none.
    """

    operator: OperatorTable
    keys: tuple[str, ...]
    types: Mapping[str, PlainType]
    timers: str | None

    @staticmethod
    def of(
        uid: str,
        keys: Mapping[str, str],
        states: Sequence[StateDescriptor],
        timers: str | None,
        max_parallelism: int,
    ) -> NewTable:
        """Return the table for these states.

        Args:
            keys: the columns of the key, with what Spark calls their types.
            max_parallelism: the number of key groups.

        Raises:
            ProgramError: a state has no plain type.
        """
        types = {state.name: _type_of(state) for state in states}
        layout = [(f"{STATE}{state.name}", state.kind) for state in states]
        if timers is not None:
            layout += TIMER_SLOTS
        named = {f"{STATE}{name}": declared.name for name, declared in types.items()}
        return NewTable(new_operator_table(uid, keys, layout, named, max_parallelism), tuple(keys), types, timers)

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return rows of the user's as rows of the table.

        Raises:
            TypeMismatchError: a key is null, or a value does not fit its type.
        """
        columns = [self._values(batch, name) for name in self.keys]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns))
        for row, key in enumerate(keys):
            if key is None or (len(columns) > 1 and all(part is None for part in key)):
                raise self._misfit(f"the key of a row is null: {shorten(_row(batch, row))}")
        try:
            hashes_of_keys(keys)
        except KeyTypeError as error:
            raise self._misfit(str(error)) from error
        slots: list[list[Any]] = []
        for name, declared in self.types.items():
            slots.append(self._checked(name, declared, keys, self._values(batch, name)))
        if self.timers is not None:
            slots += self._timer_slots(keys, self._values(batch, self.timers))
        yield from encode_rows(self.operator, keys, slots)

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        try:
            return column_to_list(batch.column(name))
        except ValueError as error:
            raise self._misfit(f"the column {name!r} cannot be read: {describe(error)}") from error

    def _checked(self, name: str, declared: PlainType, keys: list[Any], values: list[Any]) -> list[Any]:
        if not declared.fits(values):
            for key, value in zip(keys, values):
                if not declared.fits([value]):
                    raise self._misfit(f"the state {name!r} of key {shorten(key)}: {declared.misfit(value)}")
        return values

    def _timer_slots(self, keys: list[Any], timers: list[Any]) -> list[list[Any]]:
        """Return what the slots of both time domains hold in each row."""
        found: dict[str, list[Any]] = {domain: [None] * len(keys) for domain in _DOMAINS}
        for place, (key, of_key) in enumerate(zip(keys, timers)):
            for timer in of_key or ():
                domain, timestamp = (None, None) if timer is None else (timer["domain"], timer["timestamp"])
                if domain not in found or type(timestamp) is not int:
                    raise self._misfit(
                        f"a timer of key {shorten(key)} is {shorten(timer)}: domain is 'event' or 'processing', and"
                        " timestamp epoch milliseconds"
                    )
                present = found[domain][place]
                found[domain][place] = timestamp if present is None else {timestamp, *_as_set(present)}
        return list(found.values())

    def _misfit(self, what: str) -> TypeMismatchError:
        return TypeMismatchError(f"operator {self.operator.uid!r}: {what}")


@dataclass(frozen=True)
class EditedTable:
    """The table of an operator of another savepoint: some of its rows, perhaps changed.

    Attributes:
        operator: what the manifest of that savepoint says of it.
    """

    operator: OperatorTable

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return rows as rows of the table: key groups are computed again, and columns that are missing are null.

        A row whose key is null is the state of the key None, as it is in the table that the rows come from.

        Raises:
            CheckpointMismatchError: a column is of another type than the table's, or a key cannot be read.
            TypeMismatchError: a key has no hash, or is null where rows of no key cannot be told from it.
        """
        table = Table(self.operator)
        given = set(batch.schema.names)
        missing = [field for field in table.schema if field.name not in given]
        for field in missing:
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
        batch = table.cast(batch.select(table.schema.names))
        if "namespace" not in given and self.operator.space_layout and not self.operator.parts:
            nulls = np.flatnonzero(
                batch.column("key").is_null().to_numpy(zero_copy_only=False)
                & batch.column("exact").is_null().to_numpy(zero_copy_only=False)
            )
            if len(nulls):
                raise TypeMismatchError(
                    f"operator {self.operator.uid!r}: the key of a row is null, which may be the key None or the"
                    f" operator's own state: {shorten(_row(batch, int(nulls[0])))}; keep the column 'namespace', which"
                    " tells them apart"
                )
        try:
            yield table.regrouped(batch)
        except KeyTypeError as error:
            raise TypeMismatchError(f"operator {self.operator.uid!r}: {error}") from error


def _type_of(state: StateDescriptor) -> PlainType:
    try:
        found = type_of_state(state.kind, state.declared_types)
        if not is_typed(found.name):
            raise NotPlainError(f"{found.name} is a class")
    except NotPlainError as error:
        raise ProgramError(
            f"write_state(): the {state.kind} state {state.name!r} has no type that a column can have ({error}):"
            " cast the column, or declare the state with Types, or a plain class such as int"
        ) from error
    return found


def _as_set(present: Any) -> set[int]:
    return present if isinstance(present, set) else {present}


def _row(batch: pa.RecordBatch, place: int) -> dict[str, Any]:
    row: dict[str, Any] = batch.slice(place, 1).to_pylist()[0]
    return row
