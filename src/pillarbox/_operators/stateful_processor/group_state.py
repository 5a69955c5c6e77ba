"""The operator of ``applyInPandasWithState``, whose function has a state and a timeout per group.

A timeout is stored as a timer one millisecond later, because a group expires after its timeout, not at it.
Source: Spark's ``FlatMapGroupsInPandasWithStateExec``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState

from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._operators.stateful_processor.operator import ProcessorSettings, StatefulProcessorOperator
from pillarbox._operators.stateful_processor.sorted_rows import SortedRows

STATE = "state"
_UTC = pa.timestamp("us", "UTC")
TIMEOUTS = {"none": "NoTimeout", "processingtime": "ProcessingTimeTimeout", "eventtime": "EventTimeTimeout"}


class GroupStateOperator(StatefulProcessorOperator):
    """Calls a function with each key's frames, and once for each key that timed out."""

    kind = "applyInPandasWithState"
    keeps_types = True

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, settings, keying)
        assert settings.frames is not None
        self._options = settings.frames
        self._state: Any = self._handle.states[STATE]
        self._schema = settings.declarations.variables[STATE].schemas[0]

    def _call(self, program: Any, rows: SortedRows | None, batch: SparkMicroBatch) -> None:
        import pandas as pd

        call = partial(self._results_of, program)
        self._handle_rows(call, rows, batch)
        due = self._due(batch)
        if due:
            # Creating an empty frame takes pandas twenty times as long as copying it.
            empty = pd.DataFrame(columns=self._options.columns)
            for (timestamp, owner), key in zip(due, self._keys([owner for _, owner in due])):
                self.backend.set_current_key(owner)
                self.timers.delete(timestamp)
                self._take(call(key, iter([empty.copy()]), batch, timestamp))
        self._emit()

    def _keys(self, owners: list[Any]) -> Iterator[tuple[Any, ...]]:
        """Return keys as the function sees them. Their times are in the session's zone, as in rows."""
        columns = zip(*owners) if len(self.settings.key) > 1 else [owners]
        types = [pa.timestamp("us", self._options.zone) if kind == _UTC else kind for kind in self._options.key.types]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types)]
        return self._options.keys(pa.RecordBatch.from_arrays(arrays, self._options.key.names), keeps_types=True)

    def _results_of(
        self, function: Any, key: Any, frames: Iterator[Any], batch: SparkMicroBatch, timed_out: int | None = None
    ) -> Iterator[Any]:
        """Yield the results of a function's call, then store its state."""
        stored: Any = self._state.get()
        state = GroupState(
            optionalValue=stored,
            batchProcessingTimeMs=batch.time,
            eventTimeWatermarkMs=batch.watermark,
            timeoutConf=TIMEOUTS[self.settings.time_mode],
            hasTimedOut=timed_out is not None,
            watermarkPresent=self.settings.watermark is not None,
            defined=stored is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        yield from self._checked(function(key, frames, state))
        self._store(state, timed_out)

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

    def _checked(self, results: Any) -> Iterator[Any]:
        import pandas as pd

        if isinstance(results, pd.DataFrame):
            raise _wrong_type("iterable of pandas.DataFrame", type(results).__name__)
        try:
            iter(results)
        except TypeError:
            raise _wrong_type("iterable", type(results).__name__) from None
        count = len(self._options.schema)
        for result in results:
            if not isinstance(result, pd.DataFrame):
                raise _wrong_type("iterator of pandas.DataFrame", f"iterator of {type(result).__name__}")
            if len(result.columns) != count and not (len(result.columns) == 0 and result.empty):
                raise PySparkRuntimeError(
                    errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                    messageParameters={"expected": str(count), "actual": str(len(result.columns))},
                )
            yield result


def _wrong_type(expected: str, actual: str) -> PySparkTypeError:
    return PySparkTypeError(errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": actual})
