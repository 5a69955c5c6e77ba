"""Interval joins of columns: rows of two streams with equal keys and near event times, found by binary search.

The rows of a run are gathered until event time moves on, or the epoch ends. Then they are sorted, and joined with each
other and with those that are kept: sorted segments of each side, of which those of about the same length become one,
as in a log-structured merge tree. In the state each segment is an Arrow stream in a namespace of its own, under one
key, the smallest whole number that the subtask owns. There are no timers: rows are dropped as the watermark passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox.elements import ArrowRecords, Records
from pillarbox.errors import CheckpointMismatchError
from pillarbox.operators.columnar.accumulators import arrow_type
from pillarbox.operators.columnar.columnar_operator import home_key
from pillarbox.operators.columnar.join_keys import are_equal, are_exact, codes_of, without_nulls
from pillarbox.operators.columnar.join_segment import Ints, Segment
from pillarbox.operators.columnar.program import columns_of_run, times_of_run
from pillarbox.operators.functions import OutputTag
from pillarbox.operators.interval_join import Interval
from pillarbox.operators.keyed import KeyedOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext, RecordInput
from pillarbox.operators.windowing.base_operator import LATE_RECORDS_DROPPED
from pillarbox.state import ValueStateDescriptor
from pillarbox.time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox.types import RowEncoder, Types

__all__ = ["ColumnarJoin", "ColumnarJoinOperator", "JoinSide"]

# Rows are gathered until event time moves on, or these many are there.
_ROWS = 1 << 19
_BYTES = 64 * 1024 * 1024
# That many segments of about the same length become one, unless it would be longer than this.
_FEW = 4
_LONGEST = 1 << 17
_LARGEST = 16 * 1024 * 1024
# Which rows have been matched is kept as bits, in blocks of so many rows; a segment has so many numbers for them.
_BLOCK = 1 << 12
_BLOCKS = _LONGEST // _BLOCK
_MATCHES = "matches"

TIME = "__pillarbox_time"
"""The column of kept rows with their event times, epoch milliseconds."""


@dataclass(frozen=True)
class JoinSide:
    """One side of a columnar join.

    Attributes:
        columns: its columns.
        keys: the names of those that have to be equal, in the order of the other side's.
        encoder: makes columns of rows that Python functions have touched; None: they cannot become columns.
        late_tag: the side output for late rows; None: they are dropped, and counted.
    """

    columns: spark.StructType
    keys: tuple[str, ...]
    encoder: RowEncoder | None = None
    late_tag: OutputTag[Any] | None = None


@dataclass(frozen=True)
class ColumnarJoin:
    """A columnar join, as it travels to the workers.

    Attributes:
        interval: how much later than a left row a right one may be.
        outer: whether left rows without a partner come out, too.
        dropped: the columns of the right side that are left out of the results: keys that the left one has.
        names: the names of the other columns, those of the left side first.
    """

    left: JoinSide
    right: JoinSide
    interval: Interval
    outer: bool
    dropped: tuple[str, ...]
    names: tuple[str, ...]

    def result_type(self) -> spark.StructType:
        """Return the columns of the results."""
        right = [field for field in self.right.columns.fields if field.name not in self.dropped]
        fields = zip(self.names, (*self.left.columns.fields, *right))
        return spark.StructType([spark.StructField(name, field.dataType) for name, field in fields])


class _Side:
    """The rows of one stream: those that came, and those that are kept.

    Args:
        name: ``"left"`` or ``"right"``.
        keeps_matches: whether it is of interest which rows have found a partner.
        reach: how much later than a row the last of its partners may be (milliseconds).
    """

    def __init__(
        self, operator: ColumnarJoinOperator, name: str, side: JoinSide, reach: int, *, keeps_matches: bool
    ) -> None:
        self._operator = operator
        self._side = side
        self._keeps_matches = keeps_matches
        self._reach = reach
        fields = [pa.field(field.name, arrow_type(field.dataType)) for field in side.columns.fields]
        self.schema: pa.Schema = pa.schema(fields)
        self._stored: pa.Schema = pa.schema([*fields, pa.field(TIME, pa.int64())])
        self.keys: list[int] = [self.schema.get_field_index(name) for name in side.keys]
        self.are_exact: bool = are_exact([self.schema.types[index] for index in self.keys])
        self._name = name
        self.segments: list[Segment] = []
        self._came: list[pa.RecordBatch] = []
        self._stamps: list[Ints] = []
        self._next = 0
        self.rows = 0
        self.bytes = 0

    # -- records --

    def process_records(self, records: Records) -> None:
        """Gather a run of the stream's rows."""
        if not len(records):
            return
        operator = self._operator
        times = times_of_run(records, "interval_join()", "key_by(...)")
        columns = columns_of_run(records, self._side.columns.fields, self._side.encoder, operator.name)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        late = times < operator.watermark
        if late.any():
            self._take_late(batch.filter(pa.array(late)), times[late])
            batch, times = batch.filter(pa.array(~late)), times[~late]
        joinable = without_nulls([batch.column(index) for index in self.keys])
        if joinable is not None:
            # Null equals nothing, so there is nothing to wait for.
            if self._keeps_matches:
                alone = pa.array(~joinable)
                operator.emit_alone(batch.filter(alone).columns, times[~joinable])
            batch, times = batch.filter(pa.array(joinable)), times[joinable]
        if len(times):
            self._came.append(batch)
            self._stamps.append(times)
            self.rows += len(times)
            self.bytes += batch.nbytes + times.nbytes
            operator.join_if_many()

    def _take_late(self, batch: pa.RecordBatch, times: Ints) -> None:
        tag = self._side.late_tag
        if tag is None:
            self._operator.dropped += len(times)
        elif (output := self._operator.side_outputs.get(tag.tag_id)) is not None:
            output.process_records(ArrowRecords(batch, times))

    def take(self) -> Segment | None:
        """Return the rows that came, as a segment, and have them no more; None: none came."""
        if not self._came:
            return None
        (batch,) = pa.Table.from_batches(self._came).combine_chunks().to_batches()
        times = np.concatenate(self._stamps)
        self._came, self._stamps = [], []
        self.rows = self.bytes = 0
        return Segment.of(batch, self._codes(batch), times, self._no_matches(len(times)))

    def _codes(self, batch: pa.RecordBatch) -> Ints:
        return codes_of([batch.column(index) for index in self.keys])

    def _no_matches(self, rows: int) -> npt.NDArray[np.bool_] | None:
        return np.zeros(rows, np.bool_) if self._keeps_matches else None

    def expire(self, watermark: int) -> list[tuple[Segment, Ints]]:
        """Drop rows that find no partner any more; return those that have become so, as positions in segments."""
        limit = MAX_WATERMARK if watermark == MAX_WATERMARK else watermark - self._reach
        limit = min(max(limit, MIN_TIMESTAMP), MAX_WATERMARK)
        over: list[tuple[Segment, Ints]] = []
        kept: list[Segment] = []
        for segment in self.segments:
            positions = segment.expire(limit)
            if len(positions):
                over.append((segment, positions))
            rest = segment.since(limit) if segment.is_mostly_over else segment
            if rest is not None:
                kept.append(rest)
        self.segments = kept
        return over

    # -- what is kept --

    def restore(self) -> None:
        """Read what is kept, but for rows that were over by the watermark."""
        self.segments = []
        for place in self._places():
            batch = self.decode(self._operator.kept(place))
            times = batch.column(len(self.schema)).to_numpy()
            rows = batch.select(range(len(self.schema)))
            number = place[1]
            segment = Segment.of(rows, self._codes(rows), times, self._restored_matches(number, len(times)))
            if segment.is_sorted:
                segment.number = number
            self.segments.append(segment)
            self._next = number + 1
        self.expire(self._operator.watermark)

    def _places(self) -> list[tuple[str, int]]:
        """Return the places of the streams that are kept, in the order in which they were added."""
        return sorted(place for place in self._operator.places() if place[0] == self._name)

    def forget(self) -> None:
        """Drop what is in memory: the state may be another one."""
        self.segments, self._came, self._stamps = [], [], []
        self._next = self.rows = self.bytes = 0

    def check(self) -> None:
        """Check that what is kept has the columns of the program.

        Raises:
            CheckpointMismatchError: it has others.
        """
        for place in self._places()[:1]:
            self.decode(self._operator.kept(place))

    def keep_segments(self) -> None:
        """Bring the state up to the segments: those that are new are written, in one with others that are short."""
        self._merge()
        numbers = {segment.number for segment in self.segments}
        for place in self._places():
            if place[1] not in numbers:
                self._operator.keep(place, None)
                self._forget_matches(place[1])
        for segment in self.segments:
            if segment.number is None:
                segment.number, self._next = self._next, self._next + 1
                self._operator.keep((self._name, segment.number), self._encode(segment))
                if segment.matched is not None:
                    segment.changed = set((np.flatnonzero(segment.matched) // _BLOCK).tolist())
            self._keep_matches(segment)

    def _merge(self) -> None:
        kept = [segment for segment in self.segments if segment.number is not None]
        fresh = [segment for segment in self.segments if segment.number is None]
        if not fresh:
            return
        rows = sum(map(len, fresh))
        older: list[Segment] = []
        while kept and len(kept[-1]) <= 2 * rows and rows + len(kept[-1]) <= self._longest(kept[-1]):
            older.append(kept.pop())
            rows += len(older[-1])
        if len(older) < _FEW - 1:
            kept += older[::-1]
            older = []
        whole = Segment.together([*older[::-1], *fresh]) if older or len(fresh) > 1 else fresh[0]
        longest = self._longest(whole)
        if len(whole) <= longest:
            self.segments = [*kept, whole]
        else:
            starts = range(0, len(whole), longest)
            pieces = [whole.at(np.arange(start, min(start + longest, len(whole)))) for start in starts]
            self.segments = [*kept, *pieces]

    def _longest(self, segment: Segment) -> int:
        """Return how many rows such as these may be in one stream."""
        return max(1, min(_LONGEST, _LARGEST * len(segment) // max(1, int(segment.batch.nbytes))))

    def _encode(self, segment: Segment) -> bytes:
        columns = [*segment.columns(), pa.array(segment.times)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._stored) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._stored))
        kept: bytes = sink.getvalue().to_pybytes()
        return kept

    def decode(self, kept: bytes) -> pa.RecordBatch:
        """Return rows that were kept, without copying them.

        Raises:
            CheckpointMismatchError: they have other columns.
        """
        batch = pa.ipc.open_stream(pa.py_buffer(kept)).read_next_batch()
        if not batch.schema.equals(self._stored):
            had, has = (
                ", ".join(f"{field.name} {field.type}" for field in schema if field.name != TIME)
                for schema in (batch.schema, self._stored)
            )
            raise CheckpointMismatchError(
                f"operator {self._operator.name!r}: the checkpoint holds rows with other columns: they have {had}, and"
                f" those of the program {has}: set another uid() for the changed join, or start from a new checkpoint"
            )
        return batch

    # -- which rows have been matched --

    def _keep_matches(self, segment: Segment) -> None:
        for block in sorted(segment.changed):
            assert segment.matched is not None and segment.number is not None
            bits = np.packbits(segment.matched[block * _BLOCK : (block + 1) * _BLOCK])
            self._operator.keep((_MATCHES, segment.number, block), bits.tobytes())
        segment.changed = set()

    def _forget_matches(self, number: int) -> None:
        if self._keeps_matches:
            for block in range(_BLOCKS):
                self._operator.keep((_MATCHES, number, block), None)

    def _restored_matches(self, number: int, rows: int) -> npt.NDArray[np.bool_] | None:
        matched = self._no_matches(rows)
        if matched is not None:
            for block, start in enumerate(range(0, rows, _BLOCK)):
                bits = self._operator.kept((_MATCHES, number, block))
                if bits is not None:
                    part = matched[start : start + _BLOCK]
                    part[:] = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(part))
        return matched


class ColumnarJoinOperator(KeyedOperator):
    """Joins two streams of columns.

    Attributes:
        dropped: how many late rows of this epoch were dropped.
    """

    def __init__(self, context: OperatorContext, keying: Keying, join: ColumnarJoin) -> None:
        super().__init__(context, None, "", keying)
        self._join = join
        self._timers = self.time_services.get_internal_timer_service("buffers", self)
        interval = join.interval
        self._left = _Side(self, "left", join.left, interval.upper, keeps_matches=join.outer)
        self._right = _Side(self, "right", join.right, -interval.lower, keeps_matches=False)
        self._result_schema: pa.Schema = pa.schema(
            [pa.field(field.name, arrow_type(field.dataType)) for field in join.result_type().fields]
        )
        self._taken = [index for index, name in enumerate(self._right.schema.names) if name not in set(join.dropped)]
        binary = Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._rows = self.backend.get_state(ValueStateDescriptor("rows", binary), namespaced=True)
        self._home = home_key(context)
        self._restored = False
        self.dropped: int = 0

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The inputs of the left and of the right stream."""
        return (self._left, self._right)

    @property
    def watermark(self) -> int:
        """Event time, epoch milliseconds."""
        return self._timers.current_watermark

    def process_records(self, records: Records) -> None:
        """Refuse records that do not say of which stream they are."""
        raise AssertionError("an operator with two inputs takes records at its inputs")

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers."""

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers."""

    # -- joining --

    def join_if_many(self) -> None:
        """Join what came, if it is much."""
        if self._left.rows + self._right.rows >= _ROWS or self._left.bytes + self._right.bytes >= _BYTES:
            self._join_all()

    def _join_all(self) -> None:
        """Join what came with each other and with what is kept."""
        self._read()
        left, right = self._left.take(), self._right.take()
        interval = self._join.interval
        if left is not None:
            for segment in [*self._right.segments, *([] if right is None else [right])]:
                for own, other in left.pairs_with(segment, interval.lower, interval.upper):
                    self._emit(left, own, segment, other)
        if right is not None:
            for segment in self._left.segments:
                for own, other in right.pairs_with(segment, -interval.upper, -interval.lower):
                    self._emit(segment, other, right, own)
            self._right.segments.append(right)
        if left is not None:
            self._left.segments.append(left)

    def _emit(self, left: Segment, ours: Ints, right: Segment, theirs: Ints) -> None:
        """Emit pairs."""
        if not self._left.are_exact:
            one, other = left.columns(ours, self._left.keys), right.columns(theirs, self._right.keys)
            equal = are_equal(one, other)
            if not equal.all():
                ours, theirs = ours[equal], theirs[equal]
        if not len(ours):
            return
        if left.matched is not None:
            fresh = ours[~left.matched[ours]]
            left.matched[fresh] = True
            if left.number is not None:
                left.changed.update(np.unique(fresh // _BLOCK).tolist())
        columns = [*left.columns(ours), *right.columns(theirs, self._taken)]
        stamps = np.maximum(left.times[ours], right.times[theirs])
        batch = pa.RecordBatch.from_arrays(columns, schema=self._result_schema)
        self.output.process_records(ArrowRecords(batch, stamps))

    def emit_alone(self, columns: Sequence[pa.Array], stamps: Ints) -> None:
        """Emit left rows that have no partner."""
        nulls = [pa.nulls(len(stamps), self._right.schema.types[index]) for index in self._taken]
        if len(stamps):
            batch = pa.RecordBatch.from_arrays([*columns, *nulls], schema=self._result_schema)
            self.output.process_records(ArrowRecords(batch, stamps))

    # -- event time --

    def process_watermark(self, timestamp: int) -> None:
        """Join what came, drop what finds no partner any more, and hand the watermark on."""
        self._join_all()
        super().process_watermark(timestamp)

    def flush(self) -> None:
        """Drop what finds no partner any more by the watermark that has come."""
        watermark = self.watermark
        self._right.expire(watermark)
        wait = max(self._join.interval.upper, 0)
        for segment, positions in self._left.expire(watermark):
            if segment.matched is not None:
                alone = positions[~segment.matched[positions]]
                self.emit_alone(segment.columns(alone), segment.times[alone] + wait)

    def process_status(self, idle: bool) -> None:
        """Hand on a change between idle and active, behind what came before it."""
        self._join_all()
        super().process_status(idle)

    def end_input(self) -> None:
        """Join what came: the input has ended."""
        self._join_all()

    # -- state --

    def places(self) -> list[Any]:
        """Return the places where something is kept: the namespaces of the subtask's key."""
        self.backend.set_current_key(self._home)
        return self.backend.get_namespaces()

    def kept(self, place: Any) -> Any:
        """Return the bytes that are kept at a place; None: there are none."""
        self.backend.select(self._home, place)
        return self._rows.value()

    def keep(self, place: Any, content: bytes | None) -> None:
        """Keep bytes at a place in the place of others; None: nothing any more."""
        self.backend.select(self._home, place)
        if content is None:
            self._rows.clear()
        else:
            self._rows.update(content)

    def restore_state(self, state: Any) -> None:
        """Begin with what is kept; it is read when the watermark is known.

        Raises:
            CheckpointMismatchError: it has other columns than the program.
        """
        self._restored = False
        for side in (self._left, self._right):
            side.forget()
            side.check()

    def _read(self) -> None:
        if not self._restored:
            self._restored = True
            for side in (self._left, self._right):
                side.restore()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Join what came, and keep what may find partners."""
        self._join_all()
        for side in (self._left, self._right):
            side.keep_segments()

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Note in the metrics how many rows of the epoch were dropped; keyed state is all that there is."""
        self.context.counters[LATE_RECORDS_DROPPED] = self.dropped
        self.dropped = 0
