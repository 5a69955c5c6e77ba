"""The operator of ``applyInPandasWithState``, whose function has a state and a timeout per group.

A timeout is stored as a timer one millisecond later, because a group expires after its timeout rather than at it.
Source: Spark's ``FlatMapGroupsInPandasWithStateExec``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState

from pillarbox._elements import ArrowRecords
from pillarbox._operators.frame.captured import Pickled, load
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import MicroBatch, OperatorContext
from pillarbox._operators.stateful_processor.base_operator import MicroBatchOperator, ProcessorSettings
from pillarbox._operators.stateful_processor.frames import FrameResults, SortedFrames
from pillarbox._operators.stateful_processor.handle import declared_states
from pillarbox._operators.stateful_processor.sorted_rows import SortedRows

STATE = "state"
TIMEOUTS = {"none": "NoTimeout", "processingtime": "ProcessingTimeTimeout", "eventtime": "EventTimeTimeout"}


class GroupStateOperator(MicroBatchOperator):
    """Calls a function with each key's frames, and once for each key that timed out."""

    kind = "applyInPandasWithState"

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, settings, keying)
        assert settings.frames is not None
        self._options = settings.frames
        self._pickled = Pickled(settings.processor).payload
        self._state: Any = declared_states(settings.declarations, self.backend)[STATE]
        self._schema = settings.declarations.variables[STATE].schemas[0]
        self.results = FrameResults(settings.output, settings.frames)

    def _call(self, rows: SortedRows | None, batch: MicroBatch) -> None:
        import pandas as pd

        function = load(self._pickled)
        if rows is not None:
            frames = SortedFrames(rows, self._options, keeps_types=True)
            owners = self.keying.keys_of(ArrowRecords(rows.keys))
            keys = self._keys(rows.keys)
            for owner, key, start, count in zip(owners, keys, rows.starts.tolist(), rows.counts):
                self.backend.set_current_key(owner)
                self._call_group(function, key, frames.of_key(start, count), batch)
        limit = self._limit(batch)
        due = [] if limit is None else self.timers.due(limit)
        if due:
            values = [owner if len(self.settings.key) > 1 else (owner,) for _, owner in due]
            schema = self._options.key
            columns = [pa.array(column, self._in_zone(kind)) for column, kind in zip(zip(*values), schema.types)]
            keys = self._keys(pa.RecordBatch.from_arrays(columns, schema.names))
            # Creating an empty frame takes pandas twenty times as long as copying it.
            empty = pd.DataFrame(columns=self._options.columns)
            for (timestamp, owner), key in zip(due, keys):
                self.backend.set_current_key(owner)
                self.timers.delete(timestamp)
                self._call_group(function, key, iter([empty.copy()]), batch, timed_out=timestamp)
        self._emit()

    def _in_zone(self, kind: pa.DataType) -> pa.DataType:
        """Return a key column's type in the rows, whose times are in the session's zone."""
        return pa.timestamp("us", self._options.zone) if kind == pa.timestamp("us", "UTC") else kind

    def _keys(self, keys: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        columns = []
        for name in self.settings.key.names:
            column = keys.column(name)
            series = self._options.to_frame(pa.RecordBatch.from_arrays([column], ["key"]))["key"]
            columns.append(series.to_numpy() if series.dtype.kind in "iufb" else series.tolist())
        return zip(*columns)

    def _call_group(
        self, function: Any, key: Any, frames: Iterator[Any], batch: MicroBatch, timed_out: int | None = None
    ) -> None:
        stored: Any = self._state.get()
        state = GroupState(
            optionalValue=stored,
            batchProcessingTimeMs=batch.time,
            eventTimeWatermarkMs=batch.watermark,
            timeoutConf=TIMEOUTS[self.settings.time_mode],
            hasTimedOut=timed_out is not None,
            watermarkPresent=self.settings.has_watermark,
            defined=stored is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        self.results.take(self._checked(function(key, frames, state)))
        self._store(state, timed_out)
        if len(self.results) >= RUN_LIMIT:
            self._emit()

    def _store(self, state: Any, timed_out: int | None) -> None:
        """Store the state and the timeout. If the function changes neither, both remain, as in Spark."""
        timeout = int(state._timeout_timestamp)
        if not (state._updated or state._removed or timeout != -1):
            if timed_out is not None:
                self.timers.register(timed_out)
            return
        if state._defined:
            self._state.update(tuple(state._value))
        else:
            self._state.clear()
        for timestamp in self.timers.of_key():
            self.timers.delete(timestamp)
        if timeout != -1:
            self.timers.register(timeout + 1)

    def _checked(self, results: Any) -> Iterable[Any]:
        import pandas as pd

        if isinstance(results, pd.DataFrame):
            raise _wrong_type("iterable of pandas.DataFrame", results)
        try:
            iter(results)
        except TypeError:
            raise _wrong_type("iterable", results) from None
        count = len(self._options.schema)
        for result in results:
            if not isinstance(result, pd.DataFrame):
                raise PySparkTypeError(
                    errorClass="UDF_RETURN_TYPE",
                    messageParameters={
                        "expected": "iterator of pandas.DataFrame",
                        "actual": f"iterator of {type(result).__name__}",
                    },
                )
            if len(result.columns) != count and not (len(result.columns) == 0 and result.empty):
                raise PySparkRuntimeError(
                    errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                    messageParameters={"expected": str(count), "actual": str(len(result.columns))},
                )
            yield result


def _wrong_type(expected: str, actual: object) -> PySparkTypeError:
    return PySparkTypeError(
        errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": type(actual).__name__}
    )
