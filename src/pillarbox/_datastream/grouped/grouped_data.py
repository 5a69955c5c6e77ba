"""``group_by``: runs Spark's stateful programs on pillarbox, with Spark's names, arguments and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._errors import ConfigurationError, ProgramError, check_kind, listed, shorten
from pillarbox._operators.frame.operator import OperatorFactory, SparkTime
from pillarbox._operators.stateful_processor.base_operator import TIME_MODES, MicroBatchOperator, ProcessorSettings
from pillarbox._operators.stateful_processor.frames import FrameOptions, has_conversions
from pillarbox._operators.stateful_processor.group_state import STATE, TIMEOUTS, GroupStateOperator
from pillarbox._operators.stateful_processor.handle import Declarations, DriverHandle, StateVariable, declare
from pillarbox._operators.stateful_processor.operator import StatefulProcessorOperator
from pillarbox._operators.stateful_processor.values import struct_codec
from pillarbox._sizes import byte_size
from pillarbox._types.row_encoder import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

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
    # Spark's ordinals begin with 1.
    columns = [df.columns[column - 1] if _is_ordinal(df, column) else column for column in columns]
    refused = [column for column in columns if not _is_of(df, column)]
    if not columns or refused:
        raise ProgramError(
            f"group_by() takes at least one column of the DataFrame, not {listed(map(_shown, refused))}: make an"
            " expression a column first, with df.withColumn(...)"
        )
    # Spark ignores the case of names.
    by_name = {name.lower(): name for name in df.columns} | {name: name for name in df.columns}
    names = [by_name.get(name) or by_name[name.lower()] for name in df.select(*columns).columns]
    return GroupedData(df, names, env or StreamExecutionEnvironment.get_execution_environment(df.sparkSession))


def _is_ordinal(df: DataFrame, column: object) -> bool:
    return isinstance(column, int) and not isinstance(column, bool) and 0 < column <= len(df.columns)


def _is_of(df: DataFrame, column: object) -> bool:
    """Return whether ``column`` is a column of ``df``. Expressions and a struct's fields may have a column's name."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column

    if not isinstance(column, (str, Column)):
        return False
    selected = df.select(column)
    names = [name.replace("`", "``") for name in selected.columns]
    try:
        return bool(selected.select(*[df[f"`{name}`"] for name in names]).columns)
    except AnalysisException:
        return False


def _shown(column: object) -> str:
    return str(column).removeprefix("Column<'").removesuffix("'>")


class GroupedData:
    """A grouped DataFrame with Spark's stateful methods. Invalid arguments raise ``ProgramError``."""

    def __init__(self, df: DataFrame, names: list[str], env: StreamExecutionEnvironment) -> None:
        self._env = env
        self._frame = df
        self._names = names

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
            from pyspark.errors import UnsupportedOperationException

            raise UnsupportedOperationException(
                "applyInPandasWithState is unsupported in batch query. Use applyInPandas instead."
            )
        mode = modes[timeoutConf]
        declarations = Declarations({STATE: StateVariable("value", (self._parse(stateStructType),), None)})
        # The function may request the watermark even without a timeout.
        spark_mode = "eventtime" if mode == "none" and self._watermark is not None else mode
        time = SparkTime(outputMode, TIME_MODES[spark_mode])
        return self._run(GroupStateOperator, func, declarations, outputStructType, time, mode, pandas=True)

    def _transform(
        self, processor: Any, output: StructType | str, *modes: str, initial: GroupedData | None, pandas: bool
    ) -> DataFrame:
        output_mode, time_mode, event_time_column = modes
        mode = _time_mode(time_mode)
        handle = DriverHandle(mode, self._parse)
        declare(processor, handle)
        time = SparkTime(output_mode, TIME_MODES[mode], event_time_column)
        arguments = processor, handle.declarations, output, time, mode
        return self._run(StatefulProcessorOperator, *arguments, pandas=pandas, initial=self._collected(initial))

    def _collected(self, initial_state: GroupedData | None) -> pa.Table | None:
        if initial_state is None:
            return None
        check_kind(initial_state, GroupedData, "initialState", "a DataFrame grouped by pillarbox.group_by()")
        df, names = initial_state._frame, initial_state._names
        types = [df.schema[name].dataType for name in names]
        if types != [field.dataType for field in self._key]:
            raise ProgramError(
                f"initialState is grouped by {listed(names)}, whose types are not those of {listed(self._names)}: cast"
                " them"
            )
        if df.isStreaming:
            raise ProgramError("initialState must be a batch DataFrame, but this one is streaming")
        table = df.toArrow()
        if table.nbytes > _INITIAL_BYTES:
            raise ProgramError(
                f"initialState has {table.nbytes:,} bytes, more than the limit of {_INITIAL_BYTES:,}: write it as"
                " a savepoint with pillarbox.write_state(), and start from this savepoint"
            )
        return pa.table(
            {f"{index} key": table.column(name) for index, name in enumerate(names)}
            | {name: table.column(name) for name in table.column_names}
        )

    @property
    def _watermark(self) -> str | None:
        return next((field.name for field in self._frame.schema if _WATERMARK in (field.metadata or {})), None)

    def _frame_options(self, schema: StructType) -> FrameOptions:
        conf = self._frame.sparkSession.conf

        # Without default values, because Spark's differ between its versions, and may depend on the machine.
        def is_set(name: str) -> bool:
            return str(conf.get(f"spark.sql.{name}")).lower() == "true"

        if not has_conversions():
            raise ConfigurationError("functions that receive pandas frames need PySpark 4.3: upgrade PySpark")
        records = int(str(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")))
        return FrameOptions(
            columns=tuple(self._frame.columns),
            key=RowEncoder(self._key, "key").arrow_schema,
            schema=schema,
            zone=str(self._env._runtime.time_zone),
            records=records if records > 0 else 2**31 - 1,
            bytes=byte_size(str(conf.get("spark.sql.execution.arrow.maxBytesPerBatch")), "b") or 2**63 - 1,
            safe=is_set("execution.pandas.convertToArrowArraySafely"),
            by_name=is_set("legacy.execution.pandas.groupedMap.assignColumnsByName"),
            int_to_decimal=is_set("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
            int_extension=is_set("execution.pythonUDF.pandas.preferIntExtensionDtype"),
        )

    @property
    def _key(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([self._frame.schema[name] for name in self._names])

    def _parse(self, schema: StructType | str) -> StructType:
        from pyspark.sql.types import StructType

        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        check_kind(parsed, StructType, "a schema", 'columns, such as "card STRING, n LONG"')
        assert isinstance(parsed, StructType)
        return parsed

    def _run(
        self,
        make: type[MicroBatchOperator],
        processor: Any,
        declarations: Declarations,
        output: StructType | str,
        time: SparkTime,
        mode: str,
        *,
        pandas: bool,
        initial: pa.Table | None = None,
    ) -> DataFrame:
        df, schema, kind = self._frame, self._parse(output), make.kind
        struct_codec(self._key, hashable=True)  # refuses types that a key cannot have
        keyed = self._env.from_dataframe(df).key_by(self._names[0] if len(self._names) == 1 else tuple(self._names))
        settings = ProcessorSettings(
            processor=processor,
            declarations=declarations,
            time_mode=mode,
            key=self._key,
            output=RowEncoder(schema, kind).arrow_schema,
            event_time=self._watermark if mode == "eventtime" and df.isStreaming else None,
            frames=self._frame_options(schema) if pandas else None,
            has_watermark=self._watermark is not None,
            initial=initial,
        )
        operator = partial(make, settings=settings, keying=keyed._keying)
        factory = OperatorFactory(operator, keyed=True, spark_time=time)
        timed = time.time_mode == "ProcessingTime"
        return keyed._apply(kind, processor, factory, uses_processing_time=timed).uid(kind).to_dataframe(schema)


def _time_mode(mode: str) -> str:
    time_mode = mode.lower() if isinstance(mode, str) else ""
    if time_mode not in TIME_MODES:
        from pyspark.errors import IllegalArgumentException

        raise IllegalArgumentException(
            f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {mode}. Accepted timeMode modes are 'none',"
            " 'processingTime', 'eventTime' SQLSTATE: 42802"
        )
    return time_mode
