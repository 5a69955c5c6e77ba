"""Columnar interval joins.

Rows are buffered until event time advances or the epoch ends, then sorted and joined. Each side stores sorted segments.
Watermarks, rather than timers, drop rows that can no longer match.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._elements.records import ArrowRecords
from pillarbox._operators.columnar.accumulators import arrow_type
from pillarbox._operators.columnar.all_keys_state import AllKeysState
from pillarbox._operators.columnar.joins.join_keys import are_equal
from pillarbox._operators.columnar.joins.join_segment import Ints, Segment
from pillarbox._operators.columnar.joins.join_side import JoinSide, SideRows
from pillarbox._operators.frame.gathering import GatheringOperator
from pillarbox._operators.frame.inputs import TwoInputs
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.joins.interval_join import Interval
from pillarbox._state.descriptors import ValueStateDescriptor
from pillarbox._types.type_information import Types

_ROWS = 1 << 19
_BYTES = 64 * 1024 * 1024


class BaseJoinOperator(GatheringOperator, TwoInputs, KeyedOperator):
    """Finds pairs of matching rows. Subclasses process the pairs."""

    own_states: Collection[str] = ("rows",)
    by_key = False
    drops_late = True

    def __init__(
        self,
        context: OperatorContext,
        keying: Keying,
        sides: tuple[JoinSide, JoinSide],
        interval: Interval,
        *,
        outer: bool = False,
        function: Any = None,
    ) -> None:
        super().__init__(context, function, "process_element", keying)
        self._interval = interval
        self._timers = self.time_services.get_internal_timer_service("buffers", self)
        binary = Types.PRIMITIVE_ARRAY(Types.BYTE())
        self.stored: AllKeysState = AllKeysState(context, self.backend, ValueStateDescriptor("rows", binary))
        left, right = sides
        self._left = SideRows(self, "left", left, interval.upper, keeps_matches=outer)
        self._right = SideRows(self, "right", right, -interval.lower, keeps_matches=False)
        self._restored = False
        self._inputs = self._left, self._right

    @property
    def watermark(self) -> int:
        return self._timers.current_watermark

    def join_if_many(self) -> None:
        if self._left.rows + self._right.rows >= _ROWS or self._left.bytes + self._right.bytes >= _BYTES:
            self.work_off()

    def work_off(self) -> None:
        self._read()
        left, right = self._left.take(), self._right.take()
        interval = self._interval
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
        if not self._left.are_exact:
            equal = are_equal(left.columns(ours, self._left.keys), right.columns(theirs, self._right.keys))
            if not equal.all():
                ours, theirs = ours[equal], theirs[equal]
        if not len(ours):
            return
        if left.matched is not None:
            left.match(ours[~left.matched[ours]])
        self._emit_pairs(left, ours, right, theirs)

    @abstractmethod
    def _emit_pairs(self, left: Segment, ours: Ints, right: Segment, theirs: Ints) -> None: ...

    def emit_alone(self, columns: Sequence[pa.Array], stamps: Ints) -> None: ...

    def flush(self) -> None:
        watermark = self.watermark
        self._right.expire(watermark)
        wait = max(self._interval.upper, 0)
        for segment, positions in self._left.expire(watermark):
            if segment.matched is not None:
                alone = positions[~segment.matched[positions]]
                self.emit_alone(segment.columns(alone), segment.times[alone] + wait)
                segment.match(alone)  # a restored watermark may be lower

    def restore_state(self, state: Any) -> None:
        for side in (self._left, self._right):
            side.check()

    def _read(self) -> None:
        if not self._restored:
            self._restored = True
            for side in (self._left, self._right):
                side.restore()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Join the buffered rows, emit rows that can no longer match, and store the rest.

        Without this, rows that cannot match would wait for the next watermark, possibly for several epochs.
        """
        super().prepare_snapshot_pre_barrier(checkpoint_id)
        self.flush()
        for side in (self._left, self._right):
            side.keep_segments()


@dataclass(frozen=True)
class ColumnarJoin:
    """A join with columnar results. Pickled to the workers.

    Attributes:
        interval: bounds on the right row's time minus the left row's time.
        dropped: right key columns that results omit, because left key columns have the same values.
        names: result columns: the left side's, then the right side's.
    """

    left: JoinSide
    right: JoinSide
    interval: Interval
    outer: bool
    dropped: tuple[str, ...]
    names: tuple[str, ...]

    def result_type(self) -> spark.StructType:
        right = [field for field in self.right.columns.fields if field.name not in self.dropped]
        fields = zip(self.names, (*self.left.columns.fields, *right))
        return spark.StructType([spark.StructField(name, field.dataType) for name, field in fields])


class ColumnarJoinOperator(BaseJoinOperator):
    """Joins two columnar streams into one."""

    def __init__(self, context: OperatorContext, keying: Keying, join: ColumnarJoin) -> None:
        super().__init__(context, keying, (join.left, join.right), join.interval, outer=join.outer)
        fields = join.result_type().fields
        self._result_schema: pa.Schema = pa.schema(
            [pa.field(field.name, arrow_type(field.dataType)) for field in fields]
        )
        self._emitted = [index for index, name in enumerate(self._right.schema.names) if name not in join.dropped]

    def _emit_pairs(self, left: Segment, ours: Ints, right: Segment, theirs: Ints) -> None:
        columns = [*left.columns(ours), *right.columns(theirs, self._emitted)]
        stamps = np.maximum(left.times[ours], right.times[theirs])
        batch = pa.RecordBatch.from_arrays(columns, schema=self._result_schema)
        self.output.process_records(ArrowRecords(batch, stamps))

    def emit_alone(self, columns: Sequence[pa.Array], stamps: Ints) -> None:
        nulls = [pa.nulls(len(stamps), self._right.schema.types[index]) for index in self._emitted]
        if len(stamps):
            batch = pa.RecordBatch.from_arrays([*columns, *nulls], schema=self._result_schema)
            self.output.process_records(ArrowRecords(batch, stamps))
