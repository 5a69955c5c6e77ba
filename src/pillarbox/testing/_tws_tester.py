"""Spark's ``TwsTester`` without a JVM. Runs the same operator as a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import IllegalArgumentException, PySparkAssertionError, PySparkValueError
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import Row, StringType, StructField, StructType

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._operators.stateful_processor.handle import declare
from pillarbox._operators.stateful_processor.operator import TIME_MODES, ProcessorSettings, StatefulProcessorOperator
from pillarbox._task.vertex import ChainNode
from pillarbox._types.schema import resolve_schema
from pillarbox.testing._keyed_operator_harness import KeyedOneInputStreamOperatorTestHarness

if TYPE_CHECKING:
    import pandas as pd


class _TestedOperator(StatefulProcessorOperator):
    """Runs on groups, pairs of a key and its rows, and collects emitted rows without converting them to columns."""

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, settings, keying)
        self.groups: list[tuple[Any, Iterable[Any]]] = []
        self.initial: list[tuple[Any, Any]] = []

    def state(self, name: str, kind: str, key: Any) -> Any:
        variable = self.settings.declarations.variables.get(name)
        if variable is None or kind not in ("", variable.kind):
            raise PySparkAssertionError(f"State {name} has not been initialized.")
        self.backend.set_current_key(key)
        return self._handle.states[name]

    def _handle_initial_state(self, processor: Any, times: TimerValues) -> None:
        initial, self.initial = self.initial, []
        for key, state in initial:
            self.backend.set_current_key(key)
            processor.handleInitialState((key,), state, times)

    def _handle_rows(self, call: Callable[[Any, Any, Any], Any], rows: Any, times: Any) -> None:
        groups, self.groups = self.groups, []
        for key, own in groups:
            self.backend.set_current_key(key)
            self.results.take(call((key,), iter(own), times))

    def _emit(self) -> None: ...


class TwsTester:
    """Runs a ``StatefulProcessor`` on a test's rows, watermark and clock. Methods are as in Spark.

    Unlike in Spark, state values are converted to their schemas, state expires in :meth:`setProcessingTime`, timers
    fire in time order, and each call uses a new processor, without attributes from previous calls.

    Args:
        initialStateRow: (key, initial state) pairs, for processors of rows.
        initialStatePandas: the same, for processors of pandas frames.
        timeMode: ``None``, ``ProcessingTime`` or ``EventTime``. ``EventTime`` requires ``eventTimeExtractor``.
        outputMode: ignored, for compatibility with Spark.
        eventTimeExtractor: returns a row's event time (Unix time in ms), to drop late rows.

    Example:
        >>> from pyspark.sql import Row
        >>> from pyspark.sql.streaming import StatefulProcessor
        >>> from pillarbox.testing import TwsTester
        >>> class Count(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.count = handle.getValueState("count", "n LONG")
        ...
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (n,) = self.count.get() or (0,)
        ...         self.count.update((n + len(list(rows)),))
        ...         yield Row(card=key[0], n=self.count.get()[0])
        >>> tester = TwsTester(Count())
        >>> tester.test("ann", [Row(amount=5), Row(amount=7)])
        [Row(card='ann', n=2)]
        >>> tester.peekValueState("count", "ann")
        (2,)
    """

    def __init__(
        self,
        processor: Any,
        initialStateRow: list[tuple[Any, Row]] | None = None,
        initialStatePandas: list[tuple[Any, pd.DataFrame]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
    ) -> None:
        mode = timeMode.lower()
        if mode not in TIME_MODES:
            raise ProgramError(
                f"TwsTester: timeMode= must be None, ProcessingTime or EventTime, not {shorten(timeMode)}"
            )
        if mode == "eventtime" and eventTimeExtractor is None:
            raise PySparkValueError(
                errorClass="ARGUMENT_REQUIRED",
                messageParameters={"arg_name": "eventTimeExtractor", "condition": "timeMode is EventTime"},
            )
        if initialStateRow is not None and initialStatePandas is not None:
            raise ProgramError("TwsTester: pass initialStateRow= or initialStatePandas=, not both")
        self._extractor = eventTimeExtractor if mode == "eventtime" else None
        self._pandas = initialStatePandas is not None
        self._batch = SparkMicroBatch(0, 0, 0 if mode == "eventtime" else -1)
        key = StructType([StructField("key", StringType())])
        settings = ProcessorSettings(processor, declare(processor, mode, resolve_schema), mode, key, pa.schema([]))
        factory = OperatorFactory(partial(_TestedOperator, settings=settings, keying=Keying("key", "key")), keyed=True)
        name = type(processor).__name__
        self._harness = KeyedOneInputStreamOperatorTestHarness(ChainNode(name, name, factory))
        operator = self._harness.operator
        assert isinstance(operator, _TestedOperator)
        self._operator = operator
        operator.initial = list(initialStateRow or initialStatePandas or [])
        self._run()

    def test(self, key: Any, input: list[Row]) -> list[Row]:
        """Process one key's rows as a micro-batch, and return the emitted rows."""
        self._pandas = False
        rows = [row for row in input if not self._is_late(row)]
        self._operator.groups = [(key, rows)]
        return self._run()

    def testInPandas(self, key: Any, input: pd.DataFrame) -> pd.DataFrame:
        """Process a pandas frame of one key's rows as a micro-batch, and return the emitted rows as a frame."""
        self._pandas = True
        frame = input
        if self._extractor is not None:
            frame = input[[not self._is_late(row) for _, row in input.iterrows()]].reset_index(drop=True)
        self._operator.groups = [(key, [frame])]
        return _frame(self._run())

    def setProcessingTime(self, currentTimeMs: int) -> list[Row] | pd.DataFrame:
        """Advance the clock (Unix time in ms), fire due timers and remove expired state."""
        return self._advance("setProcessingTime", "ProcessingTime", "time", currentTimeMs)

    def setWatermark(self, currentWatermarkMs: int) -> list[Row] | pd.DataFrame:
        """Advance the watermark (Unix time in ms) and fire due timers. Rows up to the watermark are now late."""
        return self._advance("setWatermark", "EventTime", "watermark", currentWatermarkMs)

    def _advance(self, method: str, mode: str, clock: str, time: int) -> list[Row] | pd.DataFrame:
        if self._operator.settings.time_mode != mode.lower():
            operation = {"operation": f"{method} with TimeMode other than {mode}"}
            raise PySparkValueError(errorClass="UNSUPPORTED_OPERATION", messageParameters=operation)
        current = getattr(self._batch, clock)
        if time <= current:
            what = "Watermark" if clock == "watermark" else "Processing time"
            raise IllegalArgumentException(f"{what} must move forward. Current: {current} ms, provided: {time} ms.")
        self._batch = self._batch._replace(**{clock: time})
        results = self._run()
        return _frame(results) if self._pandas else results

    def _is_late(self, row: Any) -> bool:
        return self._extractor is not None and self._extractor(row) <= self._batch.watermark

    def _run(self) -> list[Any]:
        rows: list[Any] = self._operator.results.rows
        rows.clear()
        self._operator.context.micro_batch = self._batch
        self._harness.set_processing_time(self._batch.time)
        self._harness.snapshot()
        return list(rows)

    def updateValueState(self, stateName: str, key: Any, value: tuple[Any, ...]) -> None:
        self._operator.state(stateName, "value", key).update(value)

    def peekValueState(self, stateName: str, key: Any) -> tuple[Any, ...] | None:
        return self._operator.state(stateName, "value", key).get()  # type: ignore[no-any-return]

    def updateListState(self, stateName: str, key: Any, value: list[tuple[Any, ...]]) -> None:
        self._operator.state(stateName, "list", key).put(value)

    def peekListState(self, stateName: str, key: Any) -> list[tuple[Any, ...]]:
        return list(self._operator.state(stateName, "list", key).get())

    def updateMapState(self, stateName: str, key: Any, value: dict[Any, Any]) -> None:
        state = self._operator.state(stateName, "map", key)
        state.clear()
        for user_key, item in value.items():
            state.updateValue(user_key, item)

    def peekMapState(self, stateName: str, key: Any) -> dict[Any, Any]:
        return dict(self._operator.state(stateName, "map", key).iterator())

    def deleteState(self, stateName: str, key: Any) -> None:
        self._operator.state(stateName, "", key).clear()


def _frame(frames: list[Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
