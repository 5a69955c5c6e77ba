"""Masks a recording: fields get stand-ins, the same in records and in state, before anything is written.

A stand-in depends on the value and on a secret that nobody keeps. The stand-in of a key belongs to the same key group,
so the task still owns it. A value that cannot be masked is an error, and nothing is written then.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import pickle
import secrets
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox._elements import ArrowRecords, Buffer, Records, decode, encode, pickled_records
from pillarbox._errors import ConfigurationError, describe, listed, shorten
from pillarbox._graph.layout import lay_out
from pillarbox._rows import Row, batch_from_bytes, batch_to_bytes
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView, ViewedRows
from pillarbox._state.keys.addresses import OPERATOR, namespace_address
from pillarbox._state.keys.key_groups import key_group
from pillarbox._state.savepoint.log_builder import LogBuilder
from pillarbox._state.savepoint.manifest import OperatorTable, parts_slot_of
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.slots import NEW, STAMPS, state_name
from pillarbox._state.types.opaque import Opaque
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox_tools.recording.recording import RecordingFacts, input_of, portions_of

Hook = Callable[[str, Any], Any]
"""Gets the name of a field, or of a state, and a value; returns the value to have instead."""

# Bytes of a stand-in for text.
_TEXT = 8


class StandIns:
    """Stand-ins for the values of some fields.

    Args:
        fields: names of fields, and of states: of map states for their keys.
        groups: the number of key groups.
        keys: the fields that are keys: their stand-ins belong to the same key group.
    """

    def __init__(self, fields: Collection[str], groups: int, keys: Collection[str]) -> None:
        self._fields = frozenset(fields)
        #: The names of all fields and states whose values it was given.
        self.names: set[str] = set()
        self._groups = groups
        self._keys = frozenset(keys)
        self._secret = secrets.token_bytes(32)
        self._known: dict[tuple[bool, type, Any], Any] = {}
        self._taken: set[Any] = set()

    def __call__(self, name: str, value: Any) -> Any:
        """Return the stand-in for the value of a field; of another field, the value."""
        self.names.add(name)
        return self._all_of(name, value) if name in self._fields else value

    @property
    def unknown(self) -> list[str]:
        """The fields of which it was given no value."""
        return sorted(self._fields - self.names)

    def _all_of(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, dict):
            return {self._all_of(name, key): self._all_of(name, each) for key, each in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self._all_of(name, each) for each in value)
        return self._for(name, value)

    def _for(self, name: str, value: Any) -> Any:
        if type(value) not in (str, bytes, int, float):
            raise ConfigurationError(
                f"the field {name!r} holds {shorten(value)}, and a {type(value).__name__} has no stand-in: mask it by a"
                " function of yours, as in record(..., mask=function)"
            )
        is_key = name in self._keys
        place = is_key, type(value), value
        found = self._known.get(place)
        if found is None:
            group = key_group(value, self._groups) if is_key else None
            found = next(
                drawn
                for salt in count()
                if (drawn := self._drawn(value, salt)) not in self._taken
                and (group is None or key_group(drawn, self._groups) == group)
            )
            self._known[place] = found
            self._taken.add(found)
        return found

    def _drawn(self, value: str | bytes | int | float, salt: int) -> str | bytes | int | float:
        digest = hmac.digest(self._secret, pickle.dumps((type(value).__name__, value, salt)), hashlib.sha256)
        if isinstance(value, str):
            return digest[:_TEXT].hex()
        if isinstance(value, bytes):
            return digest
        if isinstance(value, int):
            # As many bits as the value has, or more: a column keeps its type.
            bits = next(bits for bits in (31, 63, 255) if -(1 << bits) <= value < 1 << bits)
            drawn = int.from_bytes(digest, "little") >> (256 - bits)
            return -drawn if value < 0 else drawn
        return int.from_bytes(digest[:6], "little") / 1000


class Mask:
    """Masks values of any shape: it looks for fields in rows, dictionaries, named tuples and objects."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def field(self, name: str, value: Any) -> Any:
        """Return the value that a field has instead."""
        replaced = self._hook(name, value)
        return self.within(value) if replaced is value else replaced

    def state(self, name: str, kind: str, value: Any) -> Any:
        """Return the value that a state has instead. The name of a map state stands for its keys."""
        if value is None or kind != "map":
            return self.field(name, value)
        return _refilled(value, [(self.field(name, key), self.within(each)) for key, each in value.items()])

    def within(self, value: Any) -> Any:
        """Return a value with other fields in it."""
        if value is None or isinstance(value, (str, bytes, int, float)):
            return value
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple) and fields:
            named = [self.field(name, each) for name, each in zip(fields, value)]
            return type(value)(named) if isinstance(value, Row) else type(value)(*named)
        if isinstance(value, dict):
            pairs = [
                (self.within(key), self.field(key, each) if isinstance(key, str) else self.within(each))
                for key, each in value.items()
            ]
            return type(value)(pairs) if type(value) is dict else _refilled(value, pairs)
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(map(self.within, value))
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, Opaque):
            return value.with_parts(self.within)
        names = [*getattr(value, "__dict__", ())]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [each.name for each in dataclasses.fields(value)]
        if not names or isinstance(value, type):
            return value
        masked = copy.copy(value)
        for name in names:
            object.__setattr__(masked, name, self.field(name, getattr(value, name)))
        return masked

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in columns with other values."""
        columns: list[pa.Array] = []
        for column in batch.schema:
            values = batch.column(column.name)
            given = values.to_pylist()
            masked = [self.field(column.name, value) for value in given]
            columns.append(values if masked == given else _as_column(column, masked))
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def records(self, records: Records) -> Records:
        """Return a run of records with other fields."""
        if isinstance(records, ArrowRecords):
            return ArrowRecords(self.batch(records.batch), records.stamps)
        return Records(list(map(self.within, records.values)), records.timestamps)


def _refilled(value: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> Any:
    masked = copy.copy(value)
    masked.clear()
    masked.update(pairs)
    return masked


def _as_column(column: pa.Field, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ConfigurationError(
            f"the stand-ins for the column {column.name!r} are no {column.type}: {describe(error)}"
        ) from error


def masked(
    folder: Path,
    facts: RecordingFacts,
    shipped: ShippedVertex,
    mask: Collection[str] | Hook,
    before: dict[int, bytes],
    after: dict[int, bytes] | None,
) -> tuple[RecordingFacts, dict[int, bytes], dict[int, bytes] | None]:
    """Mask the input in the folder of a recording; return what it is of, and its states, masked as well.

    The failure has neither key nor record then, nor a message, which may hold them.

    Args:
        shipped: the vertex.
        mask: names of fields, or a function.
        before: the chunks of the log before the epoch, and ``after``: those after it.

    Raises:
        ConfigurationError: a value cannot be masked, a key would become another task's, or no field and no
            state has a name that is to be masked.
    """
    maker = _MaskedRecording(facts, shipped, mask)
    maker.input(folder)
    failure = None if facts.failure is None else {**facts.failure, "key": None, "record": None, "message": ""}
    states = maker.state(before), None if after is None else maker.state(after)
    maker.check_names()
    size = input_of(folder).stat().st_size
    return dataclasses.replace(facts, failure=failure, is_masked=True, bytes=size), *states


class _MaskedRecording:
    """Masks what was received of a task."""

    def __init__(self, facts: RecordingFacts, shipped: ShippedVertex, mask: Collection[str] | Hook) -> None:
        self._facts = facts
        vertex = shipped.load()
        lay_out(vertex, facts.program_layout)
        self._groups = vertex.max_parallelism
        # It is never opened: it tells the keys of records.
        self._task = MultipleInputStreamTask(vertex, facts.subtask) if facts.level else None
        self._key_columns = self._columns() if self._task is not None else []
        keys = {columns[0] for columns in self._key_columns if len(columns) == 1}
        self._stand_ins: StandIns | None = None
        if callable(mask):
            self._mask = Mask(mask)
        else:
            self._refuse_shared_keys(mask)
            self._stand_ins = StandIns(mask, self._groups, keys)
            self._mask = Mask(self._stand_ins)

    def _columns(self) -> list[tuple[str, ...]]:
        assert self._task is not None
        keyings = [getattr(each, "keying", None) for each in self._task.chain.head.inputs]
        return [keying.columns for keying in keyings if keying is not None and keying.columns is not None]

    def _refuse_shared_keys(self, fields: Collection[str]) -> None:
        for columns in self._key_columns:
            masked = sorted({*columns} & {*fields})
            if len(columns) > 1 and masked:
                raise ConfigurationError(
                    f"operator {self._facts.uid!r} is keyed by the columns {', '.join(columns)}, of which"
                    f" {masked[0]!r} cannot be masked: the key would be another task's"
                )

    def check_names(self) -> None:
        """Refuse a name that nothing has: if it is misspelt, the recording has what it was to hide."""
        if self._stand_ins is not None and self._stand_ins.unknown:
            raise ConfigurationError(
                f"operator {self._facts.uid!r}: no record and no state of the task has the name"
                f" {self._stand_ins.unknown[0]!r}, which is to be masked; they have"
                f" {listed(sorted(self._stand_ins.names))}"
            )

    # -- the input --

    def input(self, folder: Path) -> None:
        """Mask the input in the folder of a recording."""
        place = input_of(folder)
        masked = place.with_suffix(".masked")
        with masked.open("wb") as file:
            for portion in portions_of(folder):
                file.write(pickle.dumps(self._rows(portion) if self._task is None else self._buffers(portion)))
        masked.replace(place)

    def _rows(self, portion: bytes) -> bytes:
        batch = batch_from_bytes(portion)
        if not self._facts.is_pickled:
            return batch_to_bytes(self._mask.batch(batch))
        values = [pickle.dumps(self._mask.within(value)) for value in pickled_records(batch).values]
        return batch_to_bytes(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"]))

    def _buffers(self, portion: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [tuple(self._buffer(Buffer(*each))) for each in portion]

    def _buffer(self, buffer: Buffer) -> Buffer:
        element = decode(buffer.payload)
        if not isinstance(element, Records):
            return buffer
        assert self._task is not None
        masked = self._mask.records(element)
        before, after = (self._task.keys_of(buffer.channel, each) for each in (element, masked))
        for one, other in zip(before, after):
            self._check_key(one, other)
        return buffer._replace(payload=encode(masked))

    def _check_key(self, one: Any, other: Any) -> None:
        """Refuse the stand-in for a key that state would not be found under, or another task."""
        if other != self._key(one) or key_group(one, self._groups) != key_group(other, self._groups):
            raise ConfigurationError(
                f"operator {self._facts.uid!r}: the key {shorten(one)} would become {shorten(other)}, which belongs to"
                " another task, or whose state has another key: mask fields that no key is made of, or key by the"
                " column's name"
            )

    # -- state --

    def _key(self, key: Any) -> Any:
        """Return the key that state has instead of one."""
        columns = next((each for each in self._key_columns if len(each) == 1), None)
        return self._mask.within(key) if columns is None else self._mask.field(columns[0], key)

    def state(self, chunks: dict[int, bytes]) -> dict[int, bytes]:
        """Return the chunks of a log with other values."""
        if not chunks or self._task is None:
            return chunks
        store = MemoryChunkStore()
        store.chunks = dict(chunks)
        view = LogView(store, self._facts.subtask)
        if parts_slot_of(view.head) is not None:
            raise ConfigurationError(
                f"operator {self._facts.uid!r} keeps rows as columns of Arrow in its state, which cannot be masked"
            )
        made = MemoryChunkStore()
        builder = LogBuilder(made, OperatorTable.of([view.head]), self._task.vertex.log_identity(self._facts.subtask))
        own: dict[str, Any] = {}
        for rows in view.rows():
            self._add(builder, rows, own)
        task = view.task_state()
        operators = {uid: self._mask.within(kept) for uid, kept in task.get("operators", {}).items()}
        builder.finish(OwnState({**task, "operators": operators} if task else {}, own))
        return made.chunks

    def _slot(self, slot: tuple[str, str], value: Any) -> Any:
        name, kind = slot
        is_plain = kind == "timers" or name.startswith(STAMPS)
        return value if is_plain else self._mask.state(state_name(name), kind, value)

    def _add(self, builder: LogBuilder, rows: ViewedRows, own: dict[str, Any]) -> None:
        masked = [[NEW, *map(self._slot, rows.layout, row[1:])] for row in rows.rows]
        if rows.namespaces is not None:
            mine = [namespace_address(*each) == OPERATOR for each in zip(rows.keys, rows.namespaces)]
            for row, is_own in zip(masked, mine):
                if is_own:
                    own.update({name: value for (name, _), value in zip(rows.layout, row[1:]) if value is not None})
            kept = [place for place, is_own in enumerate(mine) if not is_own]
            rows = rows._replace(
                keys=[rows.keys[place] for place in kept], namespaces=[rows.namespaces[place] for place in kept]
            )
            masked = [masked[place] for place in kept]
        if masked:
            builder.add(rows._replace(keys=list(map(self._key, rows.keys)), rows=masked))
