"""Arrow state of operators by columns: to the rows of a table, and back for other subtasks.

Such an operator keeps Arrow streams of rows of many keys, all under one key that is the subtask's own (see
docs/checkpoint-format.md). In a table each row of them stands by itself, with the key group of its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._errors import CheckpointMismatchError
from pillarbox._rows import batch_from_bytes, batch_to_bytes, column_to_list
from pillarbox._state.inspect.view import LogView, ViewedRows
from pillarbox._state.keys.key_groups import hashes_of_column, hashes_of_tuples, stable_hash
from pillarbox._state.savepoint.manifest import ArrowPart, OperatorTable, parts_slot_of
from pillarbox._state.slots import NEW

# Of a join: a bit of each left row tells whether it has found a partner, in blocks of this many rows.
_BLOCK = 1 << 12
_MATCHES = "matches"
_TIME = "__pillarbox_time"
# New streams of joins have at most this many rows, and about this many bytes.
_LONGEST = 1 << 16
_LARGEST = 8 * 1024 * 1024

_Bits = npt.NDArray[np.bool_]


class ArrowRows(NamedTuple):
    """Rows of one stream, for the table.

    Attributes:
        namespace: an aggregate's place, or a join's side.
        stream: the number of the stream.
        matched: of a join that asks for it, whether each row has found a partner.
    """

    part: ArrowPart
    namespace: Any
    stream: int
    rows: pa.RecordBatch
    matched: _Bits | None = None


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark and Parquet have for one of Arrow's: a cast leads there and back."""
    if pa.types.is_uint64(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), _stored_type(kind.item_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([(field.name, _stored_type(field.type)) for field in fields])
    return kind


def hashes_of_rows(part: ArrowPart, columns: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return the hashes of the keys of rows, as they are where records are sent to their subtask."""
    found = []
    for name in part.keys:
        column = columns.column(columns.schema.get_field_index(name))
        hashes = hashes_of_column(column, {}, nan_is_key=True)
        if hashes is None:
            hashes = np.fromiter(map(stable_hash, column_to_list(column)), np.uint64, len(column))
        found.append(hashes)
    return found[0] if len(found) == 1 else hashes_of_tuples(found)


class PartsFromLog:
    """Takes the rows of namespaces of one subtask, and returns the Arrow rows in them.

    Which rows of a join have been matched is known when all have been taken, so those wait for it.
    """

    def __init__(self, operator: OperatorTable) -> None:
        self._parts = {part.name: part for part in operator.parts}
        self._slot = operator.parts[0].slot
        self._sides: list[tuple[str, int, bytes]] = []
        self._matches: dict[tuple[int, int], bytes] = {}

    def take(self, rows: ViewedRows) -> tuple[list[ArrowRows], ViewedRows]:
        """Return the Arrow rows of some rows of namespaces, and the rows without them, if they have anything else."""
        place = next((place for place, (slot, _) in enumerate(rows.layout, 1) if slot == self._slot), None)
        assert rows.namespaces is not None
        if place is None:
            return [], rows
        found: list[ArrowRows] = []
        rest: list[int] = []
        bare: list[list[Any]] = []
        for index, (namespace, row) in enumerate(zip(rows.namespaces, rows.rows)):
            content = row[place]
            if "partials" in self._parts:
                for number, stream in sorted((content or {}).items()):
                    found.append(ArrowRows(self._parts["partials"], namespace, number, batch_from_bytes(stream)))
            elif content is not None:
                self._take_side(namespace, content)
            held = [*row[:place], None, *row[place + 1 :]]
            if any(value is not None for value in held[1:]):
                rest.append(index)
                bare.append(held)
        keys, namespaces = [rows.keys[index] for index in rest], [rows.namespaces[index] for index in rest]
        return found, ViewedRows(keys, namespaces, rows.layout, bare, rows.sizes[rest])

    def _take_side(self, namespace: Any, content: bytes) -> None:
        side, number, *block = namespace
        if side == _MATCHES:
            self._matches[number, block[0]] = content
        else:
            self._sides.append((side, number, content))

    def end(self) -> Iterator[ArrowRows]:
        """Return what has waited until all rows had been taken."""
        for side, number, content in self._sides:
            rows = batch_from_bytes(content)
            matched = None
            if side == "left" and self._matches:
                matched = np.zeros(rows.num_rows, np.bool_)
                for block, start in enumerate(range(0, rows.num_rows, _BLOCK)):
                    bits = self._matches.get((number, block))
                    if bits is not None:
                        some = matched[start : start + _BLOCK]
                        some[:] = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(some))
            yield ArrowRows(self._parts[side], side, number, rows, matched)


class PartsToLog:
    """Gathers what a new subtask gets of the Arrow rows, and returns them as streams again."""

    def __init__(self, operator: OperatorTable, home: int) -> None:
        self._parts = {part.name: part for part in operator.parts}
        self._layout = list(operator.space_layout)
        self._slot = operator.parts[0].slot
        self._home = home
        self._streams: dict[tuple[str, Any, int], list[tuple[pa.RecordBatch, _Bits | None]]] = {}
        self._timers: dict[Any, dict[str, set[int]]] = {}

    def add(self, part: str, namespace: Any, stream: int, rows: pa.RecordBatch, matched: _Bits | None) -> None:
        """Take rows of a stream."""
        self._streams.setdefault((part, namespace, stream), []).append((rows, matched))

    def add_timers(self, rows: ViewedRows) -> None:
        """Take rows of namespaces without Arrow rows: timers of windows, which former subtasks had each for itself."""
        assert rows.namespaces is not None
        for namespace, row in zip(rows.namespaces, rows.rows):
            held = self._timers.setdefault(namespace, {})
            for (slot, kind), value in zip(rows.layout, row[1:]):
                if kind == "timers" and value is not None:
                    held.setdefault(slot, set()).update(value if type(value) is set else {value})

    def end(self) -> Iterator[ViewedRows]:
        """Return all rows of namespaces."""
        made = self._places() if "partials" in self._parts else self._sides()
        yield from made

    def _rows(self, contents: Iterable[tuple[Any, dict[str, Any]]]) -> Iterator[ViewedRows]:
        for namespace, content in contents:
            row = [NEW, *(content.get(slot) for slot, _ in self._layout)]
            yield ViewedRows([self._home], [namespace], self._layout, [row], np.zeros(1))

    def _places(self) -> Iterator[ViewedRows]:
        """Return the places of aggregates. A stream has the rows that streams of its number had, so each key once."""
        places: dict[Any, dict[int, bytes]] = {}
        for (_, namespace, number), batches in sorted(self._streams.items(), key=lambda each: each[0][2]):
            places.setdefault(namespace, {})[number] = batch_to_bytes(pa.concat_batches([rows for rows, _ in batches]))
        yield from self._rows((namespace, {self._slot: streams}) for namespace, streams in places.items())
        starts = np.array(sorted(place for place in places if type(place) is int), np.int64)
        for namespace, timers in self._timers.items():
            # A window has timers where any of its panes has rows.
            start, end = namespace
            if np.searchsorted(starts, start) < np.searchsorted(starts, end):
                held = {slot: stamps if len(stamps) > 1 else next(iter(stamps)) for slot, stamps in timers.items()}
                yield from self._rows([(namespace, held)])

    def _sides(self) -> Iterator[ViewedRows]:
        """Return the sides of a join, in streams of rows that are near in time, so that one is over as a whole."""
        for side in self._parts:
            found = [each for (part, _, _), batches in self._streams.items() if part == side for each in batches]
            if not found:
                continue
            rows = pa.concat_batches([batch for batch, _ in found])
            matched: _Bits | None = None
            if any(bits is not None for _, bits in found):
                every = [np.zeros(batch.num_rows, np.bool_) if bits is None else bits for batch, bits in found]
                matched = np.concatenate(every)
            times = rows.column(rows.schema.get_field_index(_TIME)).to_numpy()
            longest = max(1, min(_LONGEST, _LARGEST * len(times) // max(1, rows.nbytes)))
            by_time = np.argsort(times, kind="stable")
            for number, start in enumerate(range(0, len(by_time), longest)):
                chosen = by_time[start : start + longest]
                stream = batch_to_bytes(rows.take(pa.array(chosen)))
                yield from self._rows([((side, number), {self._slot: stream})])
                if matched is None:
                    continue
                for block in range(0, len(chosen), _BLOCK):
                    bits = matched[chosen[block : block + _BLOCK]]
                    if bits.any():
                        content = {self._slot: np.packbits(bits).tobytes()}
                        yield from self._rows([((_MATCHES, number, block // _BLOCK), content)])


def schemas_of(view: LogView) -> dict[str, pa.Schema]:
    """Return the Arrow schemas of the streams in a log, by part; none, if there are none or it is no such operator.

    Raises:
        CheckpointMismatchError: the log cannot be read.
    """
    slot = parts_slot_of(view.head)
    found: dict[str, pa.Schema] = {}
    if slot is None:
        return found
    wanted = {"partials"} if slot == "state/partials" else {"left", "right"}
    for rows in view.rows():
        places = [place for place, (name, _) in enumerate(rows.layout, 1) if name == slot]
        for namespace, row in zip(rows.namespaces or (), rows.rows):
            for content in (row[place] for place in places):
                if type(content) is dict and content:
                    found.setdefault("partials", batch_from_bytes(next(iter(content.values()))).schema)
                elif type(content) is bytes and namespace[0] in wanted:
                    found.setdefault(namespace[0], batch_from_bytes(content).schema)
        if wanted <= found.keys():
            break
    return found


def structs_of(part: ArrowPart, rows: pa.RecordBatch) -> pa.StructArray:
    """Return rows as a column of structs, of types that Spark and Parquet have.

    Raises:
        CheckpointMismatchError: they have other columns than the others of the part.
    """
    if not rows.schema.equals(part.arrow_schema):
        raise CheckpointMismatchError(
            f"the rows in {part.name!r} have other columns ({', '.join(rows.schema.names)}) than the others"
            f" ({', '.join(part.arrow_schema.names)})"
        )
    kind = struct_type(part)
    return pa.StructArray.from_arrays(
        [pc.cast(column, field.type, safe=False) for column, field in zip(rows.columns, kind)], fields=list(kind)
    )


def rows_of(part: ArrowPart, structs: pa.StructArray) -> pa.RecordBatch:
    """Return a column of structs, none of them null, as the rows that they were made of."""
    schema = part.arrow_schema
    columns = [pc.cast(column, field.type, safe=False) for column, field in zip(structs.flatten(), schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def struct_type(part: ArrowPart) -> pa.StructType:
    """Return the type of the column of structs: of names that differ by more than their case."""
    used: set[str] = set()
    fields = []
    for field in part.arrow_schema:
        name = field.name
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        fields.append(pa.field(name, _stored_type(field.type)))
    return pa.struct(fields)
