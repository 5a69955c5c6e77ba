"""One side of a columnar join, with its buffered and its stored rows (in memory and in the state)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.columnar.accumulators import arrow_type
from pillarbox._operators.columnar.all_keys_state import streams_to_merge
from pillarbox._operators.columnar.joins.join_keys import are_exact, codes_of, without_nulls
from pillarbox._operators.columnar.joins.join_segment import BLOCK, Ints, Segment
from pillarbox._operators.columnar.program import columns_of_run, times_of_run
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._rows import batch_from_bytes, batch_to_bytes
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._types.row_encoder import RowEncoder

if TYPE_CHECKING:
    from pillarbox._operators.columnar.joins.join_operator import BaseJoinOperator

_LONGEST = 1 << 17
_LARGEST = 16 * 1024 * 1024
_MATCHES = "matches"
# Metadata of a stream of left rows without information about partners.
_NOT_KEPT = {b"pillarbox.matches": b"not kept"}

TIME = "__pillarbox_time"
"""The column of stored rows' event times, in epoch milliseconds."""


@dataclass(frozen=True)
class JoinSide:
    """One side of a columnar join. Pickled to the workers.

    Attributes:
        keys: the side's key columns, in the order of the other side's key columns.
        encoder: converts Python rows to columns, or the reason why it cannot.
        late_tag: the side output for late rows, or None to drop and count them.
        joins_nulls: whether null keys match each other. Otherwise, a row with a null key has no partner.
    """

    columns: spark.StructType
    keys: tuple[str, ...]
    encoder: RowEncoder | str
    late_tag: OutputTag[Any] | None = None
    joins_nulls: bool = False


class SideRows:
    """The buffered and stored rows of one of the joined streams."""

    def __init__(
        self, operator: BaseJoinOperator, name: str, side: JoinSide, reach: int, *, keeps_matches: bool
    ) -> None:
        self._operator = operator
        self._stored_rows = operator.stored
        self._side = side
        self._keeps_matches = keeps_matches
        self._reach = reach
        fields = [pa.field(field.name, arrow_type(field.dataType)) for field in side.columns.fields]
        self.schema: pa.Schema = pa.schema(fields)
        self._stored: pa.Schema = pa.schema([*fields, pa.field(TIME, pa.int64())])
        self.keys: list[int] = [self.schema.get_field_index(name) for name in side.keys]
        self.are_exact: bool = not side.joins_nulls and are_exact([self.schema.types[index] for index in self.keys])
        self._name = name
        self._notes = _NOT_KEPT if name == "left" and not keeps_matches else None
        self.segments: list[Segment] = []
        self._buffered: list[pa.RecordBatch] = []
        self._stamps: list[Ints] = []
        self._next = 0
        self.rows: int = 0
        self.bytes: int = 0

    def process_records(self, records: Records) -> None:
        if not len(records):
            return
        operator = self._operator
        times = times_of_run(records, "interval_join()", "key_by(...)")
        columns = columns_of_run(records, self._side.columns.fields, self._side.encoder, operator.name)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        late = times < operator.watermark
        if late.any():
            operator.take_late_run(ArrowRecords(batch.filter(pa.array(late)), times[late]), self._side.late_tag)
            batch, times = batch.filter(pa.array(~late)), times[~late]
        joinable = None if self._side.joins_nulls else without_nulls([batch.column(index) for index in self.keys])
        if joinable is not None:
            if self._keeps_matches:
                alone = pa.array(~joinable)
                operator.emit_alone(batch.filter(alone).columns, times[~joinable])
            batch, times = batch.filter(pa.array(joinable)), times[joinable]
        if len(times):
            self._buffered.append(batch)
            self._stamps.append(times)
            self.rows += len(times)
            self.bytes += batch.nbytes + times.nbytes
            operator.join_if_many()

    def take(self) -> Segment | None:
        if not self._buffered:
            return None
        (batch,) = pa.Table.from_batches(self._buffered).combine_chunks().to_batches()
        times = np.concatenate(self._stamps)
        self._buffered, self._stamps = [], []
        self.rows = 0
        self.bytes = 0
        return Segment.of(batch, self._codes(batch), times, self._no_matches(len(times)))

    def _codes(self, batch: pa.RecordBatch) -> Ints:
        return codes_of([batch.column(index) for index in self.keys], exact=self.are_exact)

    def _no_matches(self, rows: int) -> npt.NDArray[np.bool_] | None:
        return np.zeros(rows, np.bool_) if self._keeps_matches else None

    def expire(self, watermark: int) -> list[tuple[Segment, Ints]]:
        limit = MAX_WATERMARK if watermark == MAX_WATERMARK else watermark - self._reach
        limit = min(max(limit, MIN_TIMESTAMP), MAX_WATERMARK)
        over: list[tuple[Segment, Ints]] = []
        remaining: list[Segment] = []
        for segment in self.segments:
            positions = segment.expire(limit)
            if len(positions):
                over.append((segment, positions))
            rest = segment.since(limit) if segment.is_mostly_over else segment
            if rest is not None:
                remaining.append(rest)
        self.segments = remaining
        return over

    def restore(self) -> None:
        self.segments = []
        for address in self._addresses():
            batch = self.decode(self._stored_rows.at(address).value())
            # The stream was written by an outer join, which is now an inner join.
            is_stale = self._notes is not None and batch.schema.metadata != self._notes
            times = batch.column(len(self.schema)).to_numpy()
            rows = batch.select(range(len(self.schema)))
            number = address[1]
            segment = Segment.of(rows, self._codes(rows), times, self._restored_matches(number, len(times)))
            if segment.is_sorted and not is_stale:
                segment.number = number
            self.segments.append(segment)
            self._next = number + 1

    def _addresses(self) -> list[tuple[str, int]]:
        return sorted(address for address in self._stored_rows.addresses() if address[0] == self._name)

    def check(self) -> None:
        for address in self._addresses()[:1]:
            self.decode(self._stored_rows.at(address).value())

    def keep_segments(self) -> None:
        self._merge()
        numbers = {segment.number for segment in self.segments}
        for address in self._addresses():
            if address[1] not in numbers:
                self._stored_rows.at(address).clear()
                self._forget_matches(address[1])
        for segment in self.segments:
            if segment.number is None:
                segment.number, self._next = self._next, self._next + 1
                self._stored_rows.at((self._name, segment.number)).update(self._encode(segment))
                if segment.matched is not None:
                    segment.changed = set((np.flatnonzero(segment.matched) // BLOCK).tolist())
            self._keep_matches(segment)

    def _merge(self) -> None:
        stored = [segment for segment in self.segments if segment.number is not None]
        fresh = [segment for segment in self.segments if segment.number is None]
        if not fresh:
            return
        older = streams_to_merge(reversed(stored), sum(map(len, fresh)), self._longest)
        stored = stored[: len(stored) - len(older)]
        parts = [segment.alive() for segment in (*older[::-1], *fresh)]
        whole = Segment.together(parts) if len(parts) > 1 else parts[0]
        longest = self._longest(whole)
        if len(whole) <= longest:
            self.segments = [*stored, whole]
        else:
            # Divided by time, so that a piece expires as a whole, and rows at other times skip it.
            by_time = np.argsort(whole.times, kind="stable")
            pieces = [np.sort(by_time[start : start + longest]) for start in range(0, len(whole), longest)]
            self.segments = [*stored, *map(whole.at, pieces)]

    def _longest(self, segment: Segment) -> int:
        return max(1, min(_LONGEST, _LARGEST * len(segment) // max(1, int(segment.batch.nbytes))))

    def _encode(self, segment: Segment) -> bytes:
        columns = [*segment.columns(), pa.array(segment.times)]
        return batch_to_bytes(pa.RecordBatch.from_arrays(columns, schema=self._stored.with_metadata(self._notes)))

    def decode(self, payload: bytes) -> pa.RecordBatch:
        batch = batch_from_bytes(payload)
        if not batch.schema.equals(self._stored):
            had, has = (
                ", ".join(f"{field.name} {field.type}" for field in schema if field.name != TIME)
                for schema in (batch.schema, self._stored)
            )
            raise self._others(f"rows with different columns: they have {had}, but the program expects {has}")
        if self._keeps_matches and batch.schema.metadata == _NOT_KEPT:
            raise self._others("left rows of an inner join, which does not store whether a row has matched")
        return batch

    def _others(self, what: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"operator {self._operator.name!r}: the checkpoint holds {what}: give the changed join another uid() and"
            " start from a savepoint with allow_non_restored_state=True, which drops the waiting rows, or use a new"
            " checkpoint directory"
        )

    def _keep_matches(self, segment: Segment) -> None:
        for block in sorted(segment.changed):
            assert segment.matched is not None and segment.number is not None
            bits = np.packbits(segment.matched[block * BLOCK : (block + 1) * BLOCK])
            self._stored_rows.at((_MATCHES, segment.number, block)).update(bits.tobytes())
        segment.changed = set()

    def _forget_matches(self, number: int) -> None:
        for address in self._stored_rows.addresses():
            if self._name == "left" and address[:2] == (_MATCHES, number):
                self._stored_rows.at(address).clear()

    def _restored_matches(self, number: int, rows: int) -> npt.NDArray[np.bool_] | None:
        matched = self._no_matches(rows)
        if matched is not None:
            for block, start in enumerate(range(0, rows, BLOCK)):
                bits = self._stored_rows.at((_MATCHES, number, block)).value()
                if bits is not None:
                    part = matched[start : start + BLOCK]
                    part[:] = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(part))
        return matched
