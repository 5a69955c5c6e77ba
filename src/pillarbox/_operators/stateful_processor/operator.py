"""The operator of a ``StatefulProcessor``, with pillarbox's state and timers and Spark's order of events.

In each micro-batch, a new copy of the processor receives the rows, then expired timers in time order, and is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from pillarbox._elements import ArrowRecords
from pillarbox._operators.frame.captured import Pickled, load
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.keying import Keying, Router
from pillarbox._operators.frame.operator import MicroBatch, OperatorContext
from pillarbox._operators.stateful_processor.base_operator import MicroBatchOperator, ProcessorSettings
from pillarbox._operators.stateful_processor.frames import FrameResults, SortedFrames
from pillarbox._operators.stateful_processor.handle import TaskHandle
from pillarbox._operators.stateful_processor.sorted_rows import RowResults, SortedRows, values_of
from pillarbox._operators.stateful_processor.values import row_maker, struct_codec

_drain = deque[Any](maxlen=0).extend


class StatefulProcessorOperator(MicroBatchOperator):
    """Calls a ``StatefulProcessor``, with PySpark rows or with pandas frames."""

    kind = "transformWithState"

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, settings, keying)
        self._pickled = Pickled(settings.processor).payload
        self._handle = TaskHandle(settings.time_mode, settings.declarations, self.backend, self.timers)
        frames = settings.frames
        self.results = RowResults(settings.output) if frames is None else FrameResults(settings.output, frames)
        # As in Spark, the times in a timer's key are in the session's zone if the key's rows are frames.
        zone = None if frames is None else pa.lib.string_to_tzinfo(frames.zone)
        self._decode_key: Callable[[Any], Any] = struct_codec(settings.key, zone=zone).decode or tuple
        self._make_key: Callable[[Iterable[Any]], Any] = row_maker(tuple(settings.key.names))

    def _call(self, rows: SortedRows | None, batch: MicroBatch) -> None:
        processor = load(self._pickled)
        self._handle.initialize(processor.init)
        times = TimerValues(-1, -1)
        if self.settings.time_mode != "none":
            times = TimerValues(batch.time, batch.watermark)
        if self.settings.initial is not None and batch.number in (None, 0):
            self._handle_initial_state(processor, self.settings.initial, times)
        if rows is not None:
            self._handle_rows(processor, rows, times)
        self._handle_timers(processor, batch, times)
        self._emit()
        processor.close()

    def _handle_initial_state(self, processor: Any, table: pa.Table, times: TimerValues) -> None:
        key = tuple(table.column_names[: len(self.settings.key)])
        keying, context = Keying(key[0] if len(key) == 1 else key, self.name), self.context
        for batch in table.combine_chunks().to_batches():
            subtasks = Router(keying, context.parallelism, context.max_parallelism).subtasks_of(ArrowRecords(batch))
            own = batch.filter(pa.array(np.asarray(subtasks) == context.subtask))
            if own.num_rows:
                rows = SortedRows(pa.Table.from_batches([own]), key)
                owners = keying.keys_of(ArrowRecords(rows.keys))
                rows.batch = rows.batch.select(table.column_names[len(key) :])
                for owner, (shown_key, states) in zip(owners, self._groups(rows, key)):
                    self.backend.set_current_key(owner)
                    for state in states:
                        processor.handleInitialState(shown_key, state, times)

    def _handle_rows(self, processor: Any, rows: SortedRows, times: TimerValues) -> None:
        call, results, backend = processor.handleInputRows, self.results, self.backend
        table, take = backend.rows, results.take
        keys = self.keying.keys_of(ArrowRecords(rows.keys))
        for key, (shown_key, own) in zip(keys, self._groups(rows, self.settings.key.names)):
            backend.row = table[key]
            backend.key = key
            take(call(shown_key, own, times))
            _drain(own)
            if len(results) >= RUN_LIMIT:
                self._emit()

    def _groups(self, rows: SortedRows, key: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        options = self.settings.frames
        if options is not None:
            frames = SortedFrames(rows, options, keeps_types=False)
            shown = options.to_frame(rows.keys)
            keys = zip(*[list(shown[name]) for name in key])
            return zip(keys, map(frames.of_key, rows.starts.tolist(), rows.counts))
        pending = rows.rows()
        keys = zip(*[values_of(rows.keys.column(name)) for name in key])
        return zip(keys, (islice(pending, count) for count in rows.counts))

    def _handle_timers(self, processor: Any, batch: MicroBatch, times: TimerValues) -> None:
        """Call the processor for expired timers. Timers set in these calls fire in the next micro-batch or later."""
        limit = self._limit(batch)
        if limit is None:
            return
        call, results, backend = processor.handleExpiredTimer, self.results, self.backend
        for timestamp, key in self.timers.due(limit):
            backend.set_current_key(key)
            emitted = call(key=self._timer_key(key), timerValues=times, expiredTimerInfo=ExpiredTimerInfo(timestamp))
            results.take(emitted)
            # Even if the processor has registered the timer again, as in Spark.
            self.timers.delete(timestamp)
            if len(results) >= RUN_LIMIT:
                self._emit()

    def _timer_key(self, key: Any) -> Any:
        return self._make_key(self._decode_key(key if len(self.settings.key) > 1 else (key,)))
