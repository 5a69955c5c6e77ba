"""Columnar interval joins that call a function with each pair."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pillarbox._operators.columnar.joins.join_operator import BaseJoinOperator
from pillarbox._operators.columnar.joins.join_segment import Ints, Segment
from pillarbox._operators.columnar.joins.join_side import JoinSide
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.joins.interval_join import Interval, IntervalJoinContext
from pillarbox._rows import Row, column_to_list, rows_from_arrow


class ColumnarProcessJoinOperator(BaseJoinOperator):
    """Applies a ``ProcessJoinFunction`` to each pair. Rows without a partner do not become Python objects."""

    def __init__(
        self,
        context: OperatorContext,
        keying: Keying,
        sides: tuple[JoinSide, JoinSide],
        interval: Interval,
        function: Any,
    ) -> None:
        super().__init__(context, keying, sides, interval, function=function)
        self._ctx = IntervalJoinContext(self._collector, self.backend)
        # A function without state does not read the key's row.
        self._has_state = isinstance(function, Function) and type(function).open is not Function.open

    def _emit_pairs(self, left: Segment, ours: Ints, right: Segment, theirs: Ints) -> None:
        backend, call, ctx, collect = self.backend, self.call, self._ctx, self._collector.collect
        parts = [column_to_list(column) for column in left.columns(ours, self._left.keys)]
        keys = parts[0] if len(parts) == 1 else list(zip(*parts))
        pairs = list(zip(_rows(left, ours), _rows(right, theirs)))
        pending = iter(pairs)
        with FunctionPass(self, pairs, pending, pending):
            for (left_row, right_row), key, earlier, later in zip(
                pending, keys, left.times[ours].tolist(), right.times[theirs].tolist()
            ):
                if self._has_state:
                    backend.set_current_key(key)
                else:
                    backend.key = key
                ctx.left, ctx.right, ctx.current = earlier, later, max(earlier, later)
                results = call(left_row, right_row, ctx)
                if results is not None:
                    collect(results, ctx.current)
        self._collector.flush()


def _rows(segment: Segment, positions: Ints) -> list[Row]:
    return rows_from_arrow(pa.RecordBatch.from_arrays(segment.columns(positions), schema=segment.batch.schema))
