"""Flink's task model for PySpark: keyed state, timers and async I/O on Spark alone.

A program transforms streams of records with functions that have keyed state and timers; it reads Spark DataFrames,
streaming or batch, and gives a DataFrame::

    from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.seen = ctx.get_state(ValueStateDescriptor("seen"))

        def process_element(self, row, ctx):
            seen = (self.seen.value() or 0) + 1
            self.seen.update(seen)
            yield row.card, seen

    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.from_dataframe(payments).key_by("card").process(Count()).to_dataframe("card STRING, seen LONG")
"""

from pillarbox.datastream import (
    AsyncCache,
    AsyncDataStream,
    AsyncFailure,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    ConnectedStreams,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeDomain,
    TimerService,
)
from pillarbox.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    ExchangeError,
    KeyTypeError,
    OperatorError,
    PillarboxError,
    ProgramError,
)
from pillarbox.rows import Row
from pillarbox.runtime.spark.metrics import metrics
from pillarbox.runtime.spark.query import start
from pillarbox.runtime.spark.session import local_session
from pillarbox.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox.time import Duration, Time, TimestampAssigner, WatermarkGenerator, WatermarkStrategy
from pillarbox.types import TypeMismatchError, Types

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "AsyncCache",
    "AsyncDataStream",
    "AsyncFailure",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "CheckpointMismatchError",
    "ConfigurationError",
    "ConnectedStreams",
    "DataStream",
    "Duration",
    "ExchangeError",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyTypeError",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OperatorError",
    "OutputTag",
    "PillarboxError",
    "ProcessFunction",
    "ProgramError",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TimerService",
    "TimestampAssigner",
    "TypeMismatchError",
    "Types",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "local_session",
    "metrics",
    "start",
]
