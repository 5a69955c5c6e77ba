"""``group_by``: runs Spark's stateful programs on pillarbox, with Spark's names, arguments and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import Column
from pyspark.sql.types import StructType

from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._errors import ConfigurationError, ProgramError, check_kind, listed, shorten
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.frame.spark_time import SparkTime
from pillarbox._operators.stateful_processor.frames import FrameOptions
from pillarbox._operators.stateful_processor.group_state import STATE, TIMEOUTS, GroupStateOperator
from pillarbox._operators.stateful_processor.handle import HandleDeclarations, StateVariable, declare
from pillarbox._operators.stateful_processor.operator import TIME_MODES, ProcessorSettings, StatefulProcessorOperator
from pillarbox._operators.stateful_processor.value_codec import struct_codec
from pillarbox._sizes import byte_size
from pillarbox._types.row_encoder import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

_WATERMARK = "spark.watermarkDelayMs"
# Limit in bytes, because each task receives the initial state with the program.
_INITIAL_BYTES = 64 * 1024 * 1024


def group_by(
    df: DataFrame,
    *cols: str | int | Column | Sequence[str | int | Column],
    env: StreamExecutionEnvironment | None = None,
) -> GroupedData:
    """Group a DataFrame by columns, to run stateful code written for Spark's ``df.groupBy(...)`` on pillarbox.

    Classes and functions need no change. State is in Python's memory, so reads do not call the JVM. The guide "From
    transformWithState" lists the differences.

    Args:
        env: an environment with settings such as the parallelism or a savepoint.

    Example:
        >>> from pyspark.sql import Row
        >>> from pyspark.sql.streaming import StatefulProcessor
        >>> class Count(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.count = handle.getValueState("count", "n LONG")
        ...
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (n,) = self.count.get() or (0,)
        ...         self.count.update((n + len(list(rows)),))
        ...         yield Row(card=key[0], n=self.count.get()[0])
        >>> payments = group_by(spark.sql("SELECT 'ann' AS card"), "card")
        >>> payments.transformWithState(Count(), "card STRING, n LONG", "append", "None").collect()
        [Row(card='ann', n=1)]
    """
    if not hasattr(df, "mapInArrow"):
        raise ProgramError(f"group_by() takes a Spark DataFrame, not {shorten(df)}")
    columns: list[Any] = [
        column for argument in cols for column in (argument if isinstance(argument, (list, tuple)) else [argument])
    ]
    names = [_names_of(df, column) for column in columns]
    refused = [column for column, own in zip(columns, names) if not own]
    if not columns or refused:
        raise ProgramError(
            f"group_by() takes at least one column of the DataFrame, not {listed(map(_shown, refused))}: make an"
            " expression a column first, with df.withColumn(...)"
        )
    key = StructType([df.schema[name] for own in names for name in own])
    return GroupedData(df, key, env or StreamExecutionEnvironment.get_execution_environment(df.sparkSession))


def _names_of(df: DataFrame, column: object) -> list[str]:
    """Return the columns of ``df`` that an argument names. Expressions and struct fields are no columns."""
    # Spark's ordinals begin with 1.
    if isinstance(column, int) and not isinstance(column, bool) and 0 < column <= len(df.columns):
        return [df.columns[column - 1]]
    if not isinstance(column, (str, Column)):
        return []
    selected = df.select(column)
    quoted = [name.replace("`", "``") for name in selected.columns]
    try:
        # Expressions may have a column's name.
        selected.select(*[df[f"`{name}`"] for name in quoted]).schema  # noqa: B018
    except AnalysisException:
        return []
    # Spark ignores the case of names.
    by_name = {name.lower(): name for name in df.columns} | {name: name for name in df.columns}
    return [by_name.get(name) or by_name[name.lower()] for name in selected.columns]


def _shown(column: object) -> str:
    return str(column).removeprefix("Column<'").removesuffix("'>")


class GroupedData:
    """A grouped DataFrame with Spark's stateful methods. Invalid arguments raise ``ProgramError``."""

    def __init__(self, df: DataFrame, key: StructType, env: StreamExecutionEnvironment) -> None:
        self._frame, self._key, self._env = df, key, env

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Call a ``StatefulProcessor`` with the rows of each key, as PySpark rows.

        Args:
            statefulProcessor: the processor. Each subtask uses a new copy in each micro-batch.
            outputStructType: the columns that the processor emits.
            outputMode: ``append``, ``update`` or ``complete``.
            timeMode: ``None``, ``ProcessingTime`` or ``EventTime``.
            initialState: the rows that ``handleInitialState`` receives. Ignored by a start from a checkpoint or
                savepoint.
            eventTimeColumnName: the emitted column that contains event times, for later operators.

        Raises:
            PySparkRuntimeError: ``init()`` declares states in a way that Spark refuses.
        """
        modes = outputMode, timeMode, eventTimeColumnName
        return self._transform(statefulProcessor, outputStructType, *modes, initial=initialState, pandas=False)

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Call a ``StatefulProcessor`` that receives the rows of each key as pandas frames, and emits pandas frames.

        Arguments and errors are as in :meth:`transformWithState`.
        """
        modes = outputMode, timeMode, eventTimeColumnName
        return self._transform(statefulProcessor, outputStructType, *modes, initial=initialState, pandas=True)

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> DataFrame:
        """Call ``func(key, frames, state)`` for each key that has rows (passed as pandas frames) or has timed out.

        Args:
            func: returns an iterable of pandas frames.
            outputStructType: the columns of these frames.
            outputMode: ``append`` or ``update``.
            timeoutConf: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``.

        Raises:
            UnsupportedOperationException: the DataFrame is not streaming.
        """
        modes = {timeout: mode for mode, timeout in TIMEOUTS.items()}
        if timeoutConf not in modes:
            raise ProgramError(
                f"applyInPandasWithState(): timeoutConf= must be one of {listed(modes)}, not {timeoutConf!r}"
            )
        if not self._frame.isStreaming:
            raise UnsupportedOperationException(
                "applyInPandasWithState is unsupported in batch query. Use applyInPandas instead."
            )
        mode = modes[timeoutConf]
        declarations = HandleDeclarations({STATE: StateVariable("value", (_parsed(stateStructType),), None)})
        # The function may request the watermark even without a timeout.
        spark_mode = "eventtime" if mode == "none" and self._watermark is not None else mode
        time = SparkTime(outputMode, TIME_MODES[spark_mode])
        return self._run(GroupStateOperator, func, declarations, outputStructType, time, mode, pandas=True)

    def _transform(
        self, processor: Any, output: StructType | str, *modes: str, initial: GroupedData | None, pandas: bool
    ) -> DataFrame:
        output_mode, time_mode, event_time_column = modes
        mode = time_mode.lower() if isinstance(time_mode, str) else ""
        if mode not in TIME_MODES:
            raise IllegalArgumentException(
                f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {time_mode}. Accepted timeMode modes are"
                " 'none', 'processingTime', 'eventTime' SQLSTATE: 42802"
            )
        declarations = declare(processor, mode, _parsed)
        time = SparkTime(output_mode, TIME_MODES[mode], event_time_column)
        arguments = processor, declarations, output, time, mode
        return self._run(StatefulProcessorOperator, *arguments, pandas=pandas, initial=self._collected(initial))

    def _collected(self, initial_state: GroupedData | None) -> tuple[pa.Table, tuple[str, ...]] | None:
        if initial_state is None:
            return None
        check_kind(initial_state, GroupedData, "initialState", "a DataFrame grouped by pillarbox.group_by()")
        df, key = initial_state._frame, initial_state._key
        if [field.dataType for field in key] != [field.dataType for field in self._key]:
            raise ProgramError(
                f"initialState is grouped by {listed(key.names)}, whose types are not those of"
                f" {listed(self._key.names)}: cast them"
            )
        if df.isStreaming:
            raise ProgramError("initialState must be a batch DataFrame, but this one is streaming")
        table = df.toArrow()
        if table.nbytes > _INITIAL_BYTES:
            raise ProgramError(
                f"initialState has {table.nbytes:,} bytes, more than the limit of {_INITIAL_BYTES:,}: write it as"
                " a savepoint with pillarbox.write_state(), and start from this savepoint"
            )
        return table, tuple(key.names)

    @property
    def _watermark(self) -> str | None:
        return next((field.name for field in self._frame.schema if _WATERMARK in (field.metadata or {})), None)

    def _frame_options(self, schema: StructType) -> FrameOptions:
        from pyspark.sql import conversion

        conf = self._frame.sparkSession.conf

        # Without default values, because Spark's differ between its versions, and may depend on the machine.
        def is_set(name: str) -> bool:
            return str(conf.get(f"spark.sql.{name}")).lower() == "true"

        if not hasattr(conversion, "ArrowBatchTransformer") or not hasattr(conversion, "PandasToArrowConversion"):
            raise ConfigurationError("functions that receive pandas frames need PySpark 4.3: upgrade PySpark")
        records = int(str(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")))
        return FrameOptions(
            columns=tuple(self._frame.columns),
            key=RowEncoder(self._key, "key").arrow_schema,
            schema=schema,
            zone=str(self._env._runtime.time_zone),
            records=records if records > 0 else 2**31 - 1,
            bytes=byte_size(str(conf.get("spark.sql.execution.arrow.maxBytesPerBatch")), "b") or 2**63 - 1,
            int_extension=is_set("execution.pythonUDF.pandas.preferIntExtensionDtype"),
            conversion={
                "safecheck": is_set("execution.pandas.convertToArrowArraySafely"),
                "assign_cols_by_name": is_set("legacy.execution.pandas.groupedMap.assignColumnsByName"),
                "int_to_decimal_coercion_enabled": is_set("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
            },
        )

    def _run(
        self,
        make: type[StatefulProcessorOperator],
        processor: Any,
        declarations: HandleDeclarations,
        output: StructType | str,
        time: SparkTime,
        mode: str,
        *,
        pandas: bool,
        initial: tuple[pa.Table, tuple[str, ...]] | None = None,
    ) -> DataFrame:
        df, schema, kind, names = self._frame, _parsed(output), make.kind, self._key.names
        struct_codec(self._key, hashable=True)  # refuses types that a key cannot have
        keyed = self._env.from_dataframe(df).key_by(names[0] if len(names) == 1 else tuple(names))
        settings = ProcessorSettings(
            processor=processor,
            declarations=declarations,
            time_mode=mode,
            key=self._key,
            output=RowEncoder(schema, kind).arrow_schema,
            watermark=self._watermark,
            frames=self._frame_options(schema) if pandas else None,
            initial=initial,
        )
        operator = partial(make, settings=settings, keying=keyed._keying)
        factory = OperatorFactory(operator, keyed=True, spark_time=time)
        timed = time.time_mode == "ProcessingTime"
        return keyed._apply(kind, processor, factory, uses_processing_time=timed).uid(kind).to_dataframe(schema)


def _parsed(schema: StructType | str) -> StructType:
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    check_kind(parsed, StructType, "a schema", 'columns, such as "card STRING, n LONG"')
    assert isinstance(parsed, StructType)
    return parsed
