"""The table of an operator's state: rows of logs go in, and come out again for the subtasks of another parallelism.

Nothing is lost: a value that its column's type cannot hold exactly is pickled next to it, in ``exact``. Values of no
known type are pickled, each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, describe
from pillarbox._rows import batch_of, in_larger_batches
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.addresses import OPERATOR
from pillarbox._state.keys.key_groups import hashes_of_keys, key_group, smallest_key
from pillarbox._state.savepoint.arrow_parts import (
    ArrowRows,
    PartsFromLog,
    PartsToLog,
    hashes_of_rows,
    rows_of,
    struct_type,
    structs_of,
)
from pillarbox._state.savepoint.column_types import ColumnType, PickledType, column_type
from pillarbox._state.savepoint.manifest import ArrowPart, OperatorTable, SlotColumn
from pillarbox._state.savepoint.namespaces import has_own_namespace, is_namespaced, is_own, namespace_of, texts_of
from pillarbox._state.savepoint.timer_column import TIMERS, decode_timers, encode_timers
from pillarbox._state.slots import NEW
from pillarbox._state.types.opaque import AnyNames, Opaque, pickled
from pillarbox._unpickle import UnpickleGlobalError, loads_allowed
from pillarbox._unpickle import loads as loads_anything

# Key groups of rows: of a key whose class is not at hand; of no key, but of all subtasks; and the operator's own.
_UNKNOWN = -1
_ALL = -2
_OWN = -3

Loads = Callable[[bytes], Any]


class Table:
    """The table of an operator's state.

    Attributes:
        operator: what the manifest says of it.
        schema: its columns; batches of others' making are cast to it.
    """

    def __init__(self, operator: OperatorTable) -> None:
        self.operator: OperatorTable = operator
        self._parts = {part.name: part for part in operator.parts}
        self._typed: dict[str, ColumnType] = {
            column.name: column_type(column.type) for column in operator.columns if column.type is not None
        }
        if operator.key_type is not None:
            self._typed["key"] = column_type(operator.key_type)
        self._pickled = PickledType(loads_anything)
        names = [("key_group", pa.int32()), ("subtask", pa.int32())]
        names += [("key", self._kind("key").arrow), ("namespace", pa.string())]
        if self._parts:
            names += [("stream", pa.int32()), *((part.name, struct_type(part)) for part in operator.parts)]
        if "left" in self._parts:
            names += [("matched", pa.bool_())]
        names += [(column.name, self._kind(column.name).arrow) for column in operator.columns]
        self.schema: pa.Schema = pa.schema([*names, ("timers", TIMERS), ("exact", pa.binary())])

    def _kind(self, column: str) -> ColumnType:
        return self._typed.get(column, self._pickled)

    # -- from a log --

    def encode(self, views: Iterable[ViewedRows], subtask: int) -> Iterator[pa.RecordBatch]:
        """Return all rows of the log of a subtask as batches of some thousand rows.

        Raises:
            CheckpointMismatchError: rows of an operator by columns have other columns than the table.
        """
        return in_larger_batches(self._encoded(views, subtask))

    def _encoded(self, views: Iterable[ViewedRows], subtask: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        parts = PartsFromLog(self.operator) if self._parts else None
        for rows in views:
            if parts is not None and rows.namespaces is not None:
                found, rows = parts.take(rows)  # noqa: PLW2901
                for each in found:
                    yield self._of_arrow(each, subtask), each.rows.nbytes
            if rows.keys:
                yield self._of_rows(rows, subtask), int(rows.sizes.sum())
        for each in parts.end() if parts is not None else ():
            yield self._of_arrow(each, subtask), each.rows.nbytes

    def _of_rows(self, rows: ViewedRows, subtask: int) -> pa.RecordBatch:
        count, keys, namespaces = len(rows.keys), rows.keys, rows.namespaces
        misfits: dict[int, dict[str, Any]] = {}

        def column(name: str, values: list[Any]) -> pa.Array:
            array, wrong = self._kind(name).split(values)
            for place in wrong:
                misfits.setdefault(place, {})[name] = values[place]
            return array

        groups = self._groups(keys)
        found: dict[str, pa.Array] = {}
        if namespaces is not None:
            found["namespace"] = pa.array(texts_of(namespaces), pa.string())
            own_namespace = OPERATOR[1]
            own = [place for place, key in enumerate(keys) if key is None and namespaces[place] == own_namespace]
            groups[own] = _OWN
            if self._parts:
                # All that is left here is timers, which are of no key: each subtask has those of its windows.
                groups[:] = _ALL
                keys = [None] * count
        of_key = groups >= _UNKNOWN
        if of_key.all():
            found["key"] = column("key", keys)
        elif not of_key.any():
            found["key"] = pa.nulls(count, self._kind("key").arrow)
        else:
            found["key"] = column("key", [key if mine else None for key, mine in zip(keys, of_key.tolist())])
        places = {slot: place for place, (slot, _) in enumerate(rows.layout, 1)}
        for each in self.operator.columns:
            place = places.get(each.slot)
            if each.space == (namespaces is not None) and place is not None and rows.layout[place - 1][1] == each.kind:
                found[each.name] = column(each.name, [row[place] for row in rows.rows])
        found["key_group"] = pa.array(groups.astype(np.int32), mask=~of_key)
        found["timers"] = encode_timers(rows.layout, rows.rows)
        if misfits:
            found["exact"] = pa.array([_pickled(misfits.get(place)) for place in range(count)], pa.binary())
        return self._batch(found, count, subtask)

    def _of_arrow(self, found: ArrowRows, subtask: int) -> pa.RecordBatch:
        count = found.rows.num_rows
        groups = _groups_of_hashes(hashes_of_rows(found.part, found.rows), self.operator.max_parallelism)
        columns = {
            "key_group": pa.array(groups.astype(np.int32)),
            "namespace": pa.array(texts_of([found.namespace] * count), pa.string()),
            "stream": pa.array(np.full(count, found.stream, np.int32)),
            found.part.name: structs_of(found.part, found.rows),
        }
        if found.matched is not None:
            columns["matched"] = pa.array(found.matched)
        return self._batch(columns, count, subtask)

    def _batch(self, columns: dict[str, pa.Array], count: int, subtask: int) -> pa.RecordBatch:
        columns["subtask"] = pa.array(np.full(count, subtask, np.int32))
        return batch_of(self.schema, count, columns)

    def _groups(self, keys: list[Any]) -> npt.NDArray[np.int64]:
        """Return the key group of each key, or that it is not known: where the key is of a class that is not here."""
        groups = self.operator.max_parallelism
        try:
            return _groups_of_hashes(hashes_of_keys(keys), groups)
        except TypeError:
            return np.array([_group(key, groups) for key in keys], np.int64)

    # -- for other subtasks --

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the table's rows with the table's columns; its own may be in any order.

        Raises:
            CheckpointMismatchError: a column is missing, or of another type.
        """
        if batch.schema.equals(self.schema):
            return batch
        arrays = []
        for field in self.schema:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                raise self._wrong(f"it has no column {field.name!r}")
            try:
                column = batch.column(place)
                arrays.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise self._wrong(f"its column {field.name!r} is no {field.type}: {describe(error)}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def route(
        self, batch: pa.RecordBatch, parallelism: int, max_parallelism: int, loads: Loads = loads_anything
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each new subtask that gets any of some rows, with its share of them.

        Args:
            parallelism: the number of the new subtasks.
            max_parallelism: the number of key groups from now on; if it is another one, keys are hashed again.
            loads: unpickles keys.

        Raises:
            CheckpointMismatchError: a key cannot be read, or a key group is none.
        """
        batch = self.cast(batch)
        groups = self._groups_of(batch, max_parallelism, loads)
        targets = np.where(groups >= 0, groups * parallelism // max_parallelism, groups)
        order = np.argsort(targets, kind="stable")
        edges = np.searchsorted(targets[order], np.arange(parallelism + 1)).tolist()
        everyone = np.flatnonzero(targets == _ALL)
        for subtask, (start, end) in enumerate(pairwise(edges)):
            chosen = np.concatenate([order[start:end], everyone])
            if len(chosen) == batch.num_rows:
                yield subtask, batch
            elif len(chosen):
                yield subtask, batch.take(pa.array(chosen))

    def regrouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the key groups of their keys, whatever ``key_group`` says in them.

        Raises:
            CheckpointMismatchError: a key cannot be read.
            KeyTypeError: a key has no hash.
        """
        batch = self.cast(batch)
        of_key = np.ones(batch.num_rows, np.bool_)
        if self._parts:
            # Only timers are outside of the parts, and each subtask takes the timers of its windows.
            of_key &= self._in_parts(batch)
        else:
            of_key &= ~(has_own_namespace(batch) & batch.column("key").is_null().to_numpy(zero_copy_only=False))
        unknown = np.full(batch.num_rows, _UNKNOWN, np.int32)
        place = batch.schema.get_field_index("key_group")
        field = self.schema.field(place)
        batch = batch.set_column(place, field, pa.array(unknown, mask=~of_key))
        groups = self._groups_of(batch, self.operator.max_parallelism, loads_anything)
        return batch.set_column(place, field, pa.array(groups.astype(np.int32), mask=~of_key))

    def _in_parts(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is an Arrow row of an operator by columns."""
        found = np.zeros(batch.num_rows, np.bool_)
        for part in self.operator.parts:
            found |= batch.column(part.name).is_valid().to_numpy(zero_copy_only=False)
        return found

    def _groups_of(self, batch: pa.RecordBatch, max_parallelism: int, loads: Loads) -> npt.NDArray[np.int64]:
        column = batch.column("key_group")
        groups: npt.NDArray[np.int64] = column.fill_null(_ALL).to_numpy().astype(np.int64)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        outside = given & ((groups < _UNKNOWN) | (groups >= self.operator.max_parallelism))
        if outside.any():
            raise self._wrong(
                f"a row has the key_group {groups[int(outside.argmax())]}, and key groups are 0 to"
                f" {self.operator.max_parallelism - 1}"
            )
        # Arrow rows are hashed in any case: that costs little, and nothing else would find a wrong group of theirs.
        for part in self.operator.parts:
            mine = batch.column(part.name).is_valid().to_numpy(zero_copy_only=False)
            if mine.any():
                rows = rows_of(part, batch.column(part.name).filter(pa.array(mine)))
                groups[mine] = _groups_of_hashes(hashes_of_rows(part, rows), max_parallelism)
        in_parts = self._in_parts(batch)
        of_none = ~given & ~in_parts
        if of_none.any() and not self._parts:
            own = of_none & has_own_namespace(batch)
            if (of_none & ~own).any():
                raise self._wrong("a row of a key has no key_group")
            groups[own] = _OWN
        rehashed = groups == _UNKNOWN if max_parallelism == self.operator.max_parallelism else groups >= _UNKNOWN
        rehashed &= ~in_parts
        if rehashed.any():
            keys = self.keys(batch.filter(pa.array(rehashed)), loads)
            groups[rehashed] = _groups_of_hashes(hashes_of_keys(keys), max_parallelism)
        return groups

    def keys(self, batch: pa.RecordBatch, loads: Loads) -> list[Any]:
        """Return the keys of rows."""
        with self._readable():
            keys = self._decode("key", batch, loads)
            for place, values in _exact(batch, _as_written()):
                if "key" in values:
                    keys[place] = loads(pickled(values["key"]))
        return keys

    def rows(
        self, batches: Iterable[pa.RecordBatch], owner: KeyOwner, loads: Loads = loads_anything
    ) -> Iterator[ViewedRows]:
        """Return what a subtask has of the rows that :meth:`route` gave it, as a log has it.

        Rows of keys come batch by batch; of an operator by columns all are gathered first.

        Args:
            owner: the new subtask.
            loads: unpickles keys; values stay as they were written.

        Raises:
            CheckpointMismatchError: the rows are not as the manifest says, or cannot be unpickled.
        """
        parts: PartsToLog | None = None
        if self._parts:
            home = smallest_key(owner.subtask, owner.max_parallelism, owner.parallelism)
            parts = PartsToLog(self.operator, home)
        for batch in batches:
            batch = self.cast(batch)  # noqa: PLW2901
            if parts is not None:
                batch = self._take_parts(batch, parts, loads)  # noqa: PLW2901
            for namespaced in (False, True):
                chosen = self._chosen(batch, namespaced=namespaced)
                if chosen.num_rows:
                    yield self._view(chosen, loads, namespaced=namespaced)
        if parts is not None:
            yield from parts.end()

    def _chosen(self, batch: pa.RecordBatch, *, namespaced: bool) -> pa.RecordBatch:
        """Return the rows of namespaces, or of keys; without the operator's own."""
        namespaces = batch.column("namespace")
        if namespaces.null_count == batch.num_rows:
            return batch.slice(0, 0) if namespaced else batch
        if not namespaced:
            return batch.filter(namespaces.is_null())
        return batch.filter(pa.array(is_namespaced(batch) & ~is_own(batch)))

    def _take_parts(self, batch: pa.RecordBatch, parts: PartsToLog, loads: Loads) -> pa.RecordBatch:
        """Take the rows of parts, and the timers of their windows, out of a batch."""
        streams, namespaces = batch.column("stream").fill_null(-1).to_numpy(), batch.column("namespace")
        for part in self.operator.parts:
            mine = batch.column(part.name).is_valid().to_numpy(zero_copy_only=False)
            if not mine.any():
                continue
            texts = namespaces.dictionary_encode()
            codes = np.where(mine, texts.indices.fill_null(0).to_numpy().astype(np.int64) * (1 << 32) + streams, -1)
            for code in np.unique(codes[mine]).tolist():
                here = batch.filter(pa.array(codes == code))
                parts.add(part.name, *self._stream(part, here))
        rest = batch.filter(batch.column("stream").is_null())
        of_all = rest.column("key_group").is_null().to_numpy(zero_copy_only=False)
        if of_all.any():
            parts.add_timers(self._view(rest.filter(pa.array(of_all)), loads, namespaced=True))
        return rest.filter(pa.array(~of_all))

    def _stream(self, part: ArrowPart, batch: pa.RecordBatch) -> tuple[Any, int, pa.RecordBatch, Any]:
        matched = None
        if "matched" in self.schema.names and batch.column("matched").null_count < batch.num_rows:
            matched = batch.column("matched").fill_null(False).to_numpy(zero_copy_only=False)
        namespace = namespace_of(batch.column("namespace")[0].as_py())
        return namespace, batch.column("stream")[0].as_py(), rows_of(part, batch.column(part.name)), matched

    def views(self, batch: pa.RecordBatch, loads: Loads) -> Iterator[tuple[ViewedRows, pa.Array]]:
        """Return rows as the logs had them, with the former subtask of each; of an operator by columns, not its own.

        Raises:
            CheckpointMismatchError: the rows are not as the manifest says, or cannot be unpickled.
        """
        batch = self.cast(batch)
        if self._parts:
            batch = batch.filter(batch.column("stream").is_null())
        namespaces = is_namespaced(batch)
        for namespaced in (False, True):
            chosen = batch.filter(pa.array(namespaces == namespaced))
            if chosen.num_rows:
                yield self._view(chosen, loads, namespaced=namespaced), chosen.column("subtask")

    def own_rows(self, batch: pa.RecordBatch, loads: Loads = loads_anything) -> dict[int, dict[str, Any]]:
        """Return what the former subtasks had of the operator's own state, by subtask and slot.

        Raises:
            CheckpointMismatchError: the rows are not as the manifest says, or cannot be unpickled.
        """
        batch = self.cast(batch)
        batch = batch.filter(pa.array(is_own(batch)))
        if not batch.num_rows:
            return {}
        view = self._view(batch, loads, namespaced=True, own=True)
        return {
            subtask: {slot: value for (slot, _), value in zip(view.layout, row[1:]) if value is not None}
            for subtask, row in zip(batch.column("subtask").to_pylist(), view.rows)
        }

    def _view(self, batch: pa.RecordBatch, loads: Loads, *, namespaced: bool, own: bool = False) -> ViewedRows:
        """Return rows of keys, or of namespaces.

        Args:
            loads: unpickles keys; and the values of the operator's own rows, which are shared out.
            own: whether it is those.
        """
        of_values = loads if own else _as_written()
        count = batch.num_rows
        layout = list(self.operator.space_layout if namespaced else self.operator.layout)
        columns: dict[str, Sequence[Any]] = {}
        names: dict[str, SlotColumn] = {}
        with self._readable():
            keys = self._decode("key", batch, loads)
            for column in self.operator.columns:
                if column.space == namespaced and batch.column(column.name).null_count < count:
                    columns[column.slot] = self._decode(column.name, batch, of_values)
                if column.space == namespaced:
                    names[column.name] = column
            columns.update(decode_timers(batch.column("timers"), [slot for slot, kind in layout if kind == "timers"]))
            for place, values in _exact(batch, of_values):
                for name, value in values.items():
                    if name == "key":
                        keys[place] = loads(pickled(value))
                    else:
                        slot = names[name].slot
                        held = columns.setdefault(slot, [None] * count)
                        held[place] = value  # type: ignore[index]
        nothing = [None] * count
        rows = list(map(list, zip(repeat(NEW, count), *(columns.get(slot, nothing) for slot, _ in layout))))
        namespaces = None
        if namespaced:
            texts = batch.column("namespace").to_pylist()
            known = {text: namespace_of(text) for text in set(texts)}
            namespaces = [known[text] for text in texts]
        return ViewedRows(keys, namespaces, layout, rows, np.zeros(count))

    def _decode(self, name: str, batch: pa.RecordBatch, loads: Loads) -> list[Any]:
        kind = self._typed.get(name) or PickledType(loads)
        return kind.decode(batch.column(name))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Let what raises while rows are read say whose rows."""
        try:
            yield
        except CheckpointMismatchError:
            raise
        except UnpickleGlobalError as error:
            raise CheckpointMismatchError(
                f"operator {self.operator.uid!r}: the savepoint holds, in keys or in state of the operator's own,"
                f" {error.advice}"
            ) from error
        except Exception as error:
            raise self._wrong(f"its rows cannot be read: {describe(error)}") from error

    def _wrong(self, what: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"operator {self.operator.uid!r}: the table of the savepoint is not as its manifest says: {what}"
        )


def _groups_of_hashes(hashes: npt.NDArray[np.uint64], groups: int) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (hashes % np.uint64(groups)).astype(np.int64)
    return found


def _group(key: Any, groups: int) -> int:
    if isinstance(key, Opaque):
        return _UNKNOWN  # without an error made for each
    try:
        return key_group(key, groups)
    except TypeError:
        return _UNKNOWN


def _pickled(values: dict[str, Any] | None) -> bytes | None:
    return None if values is None else pickled(values)


def _as_written() -> Loads:
    """Return what unpickles values without their classes, which may be others now: a restore of the log finds out."""
    return partial(loads_allowed, allowed=AnyNames())


def _exact(batch: pa.RecordBatch, loads: Loads) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the values that their columns cannot hold, by row."""
    column = batch.column("exact")
    if column.null_count < len(column):
        for place in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
            yield place, loads(column[place].as_py())
