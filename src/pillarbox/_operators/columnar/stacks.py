"""``TwoStacks`` (see ``windowing/two_stacks.py``) for columnar windows, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pillarbox._operators.columnar.partials import Partials
from pillarbox._operators.windowing.two_stacks import TwoStacks

# The front has at most this multiple of its panes' rows, plus a constant.
_TIMES = 2
_FREE = 1 << 12


class ColumnStacks(TwoStacks):
    """Merges panes that have many keys each.

    If few keys are in more than one pane, a result in the front stack has as many rows as its panes together. The stack
    then stores only some results, and a window merges the next stored result with the panes before it.
    """

    __slots__ = ("_partials", "_raw")

    def __init__(self, partials: Partials, read: Callable[[int], pa.RecordBatch | None]) -> None:
        super().__init__(lambda first, second: partials.merged([first, second], None), read, lambda batch: batch)
        self._partials = partials
        self._raw: dict[int, int] = {}

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for _, batch in self._front)

    def _from(self, start: int, panes: Sequence[int]) -> pa.RecordBatch | None:
        front = self._front
        self._raw = {pane: rows for pane, rows in self._raw.items() if pane >= start} if front else {}
        result: pa.RecordBatch | None = front[-1][1] if front else None
        held = self.rows
        waiting: list[pa.RecordBatch] = []
        for pane in reversed(panes):
            batch = self._read(pane)
            if batch is None:
                continue
            self._raw[pane] = batch.num_rows
            waiting.append(batch)
            rows = sum(pane.num_rows for pane in waiting) + (0 if result is None else result.num_rows)
            if held + rows <= _TIMES * sum(self._raw.values()) + _FREE:
                result = self._in_one(waiting, result)
                waiting = []
                held += result.num_rows
                front.append((pane, result))
        return self._in_one(waiting, result) if waiting else result

    def _in_one(self, waiting: list[pa.RecordBatch], result: pa.RecordBatch | None) -> pa.RecordBatch:
        parts = [*reversed(waiting), *([] if result is None else [result])]
        return parts[0] if len(parts) == 1 else self._partials.merged(parts, None)
