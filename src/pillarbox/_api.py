"""Lists the names of the public namespace, ``pillarbox``, and their modules."""

from pillarbox._copies import immutable
from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream, BroadcastStream
from pillarbox._datastream.connected.connected_streams import ConnectedStreams
from pillarbox._datastream.connected.joined_streams import (
    CoGroupedStreams,
    CoGroupedWindows,
    IntervalJoin,
    JoinedStreams,
    JoinedWindows,
)
from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._datastream.environment.execution_mode import RuntimeExecutionMode
from pillarbox._datastream.grouped.grouped_data import GroupedData, group_by
from pillarbox._datastream.streams.async_data_stream import AsyncDataStream
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._datastream.streams.results import DataStreamSink
from pillarbox._datastream.windows.all_windowed_stream import AllWindowedStream
from pillarbox._datastream.windows.windowed_stream import WindowedStream
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import (
    BudgetExceededError,
    CheckpointMismatchError,
    CircuitOpenError,
    ConfigurationError,
    ExchangeError,
    KeyTypeError,
    OperatorError,
    PillarboxError,
    ProgramError,
    SavepointError,
    TypeMismatchError,
)
from pillarbox._graph.program import Program
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.fallback import AsyncFallback, fallback
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFailure, AsyncFunction
from pillarbox._operators.async_io.api.retry import AsyncRetryPredicate, AsyncRetryStrategy
from pillarbox._operators.budgets.budget import Budget, CircuitBreaker
from pillarbox._operators.columnar.aggregates import (
    ArrowAggregateFunction,
    ColumnAggregate,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    last_,
    max_,
    min_,
    sum_,
)
from pillarbox._operators.dead_letters.dead_letter import DeadLetter
from pillarbox._operators.functions.basic import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
)
from pillarbox._operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
)
from pillarbox._operators.functions.calls import CALL_AGAIN
from pillarbox._operators.functions.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from pillarbox._operators.functions.contexts import RuntimeContext, TimeDomain, TimerService
from pillarbox._operators.functions.joins import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from pillarbox._operators.functions.metric_group import Counter, Distribution, Meter, MetricGroup
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.functions.two_streams import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from pillarbox._operators.windowing.api.assigner import MergeCallback, MergingWindowAssigner, WindowAssigner
from pillarbox._operators.windowing.api.continuous_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
)
from pillarbox._operators.windowing.api.count_windows import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    GlobalWindows,
)
from pillarbox._operators.windowing.api.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
    TimestampedValue,
)
from pillarbox._operators.windowing.api.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from pillarbox._operators.windowing.api.session_windows import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
)
from pillarbox._operators.windowing.api.time_windows import (
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from pillarbox._operators.windowing.api.triggers import (
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from pillarbox._operators.windowing.api.window_context import KeyedStateStore
from pillarbox._operators.windowing.api.windows import CountWindow, GlobalWindow, TimeWindow, Window
from pillarbox._reports.metrics import metrics
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._rows import Row
from pillarbox._runtime.local import LocalJob
from pillarbox._runtime.spark.reading.key_life import key_history
from pillarbox._runtime.spark.reading.state_reader import read_state
from pillarbox._runtime.spark.running.monitoring import (
    Dashboard,
    MetricsServer,
    QueryCollector,
    dashboard,
    export_otel,
    record,
    serve_metrics,
)
from pillarbox._runtime.spark.running.query import start
from pillarbox._runtime.spark.running.run import run
from pillarbox._runtime.spark.running.stop import stop_with_savepoint
from pillarbox._runtime.spark.savepoint.adopt import adopt
from pillarbox._runtime.spark.savepoint.savepoint import savepoint
from pillarbox._runtime.spark.savepoint.write_state import write_state
from pillarbox._runtime.spark.session.local_session import local_session
from pillarbox._runtime.spark.starting.rescale import rescale
from pillarbox._runtime.spark.tools import Tools, provide
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.ttl import StateTtlConfig
from pillarbox._time.duration import Duration, Time
from pillarbox._time.timestamp_assigner import TimestampAssigner
from pillarbox._time.watermark_generators import WatermarkGenerator
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.type_information import TypeInformation, Types

__all__ = [
    "CALL_AGAIN",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "ArrowAggregateFunction",
    "AsyncBatchFunction",
    "AsyncCache",
    "AsyncDataStream",
    "AsyncFailure",
    "AsyncFallback",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "Budget",
    "BudgetExceededError",
    "CheckpointMismatchError",
    "CheckpointedFunction",
    "CircuitBreaker",
    "CircuitOpenError",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoGroupedStreams",
    "CoGroupedWindows",
    "CoMapFunction",
    "CoProcessFunction",
    "ColumnAggregate",
    "ConfigurationError",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "Counter",
    "CumulativeEventTimeWindows",
    "CumulativeProcessingTimeWindows",
    "Dashboard",
    "DataStream",
    "DataStreamSink",
    "DeadLetter",
    "DeltaEvictor",
    "DeltaTrigger",
    "Distribution",
    "Duration",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExchangeError",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindow",
    "GlobalWindows",
    "GroupedData",
    "IntervalJoin",
    "JoinFunction",
    "JoinedStreams",
    "JoinedWindows",
    "KeySelector",
    "KeyTypeError",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "LocalJob",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MergeCallback",
    "MergingWindowAssigner",
    "Meter",
    "MetricGroup",
    "MetricsServer",
    "NeverTrigger",
    "OperatorError",
    "OperatorReport",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "PillarboxError",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "Program",
    "ProgramError",
    "PurgingTrigger",
    "QueryCollector",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SavepointError",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "StateDescriptor",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TaskReport",
    "Time",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampAssigner",
    "TimestampedValue",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TypeInformation",
    "TypeMismatchError",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "adopt",
    "approx_count_distinct_",
    "avg_",
    "count_",
    "dashboard",
    "export_otel",
    "fallback",
    "first_",
    "group_by",
    "immutable",
    "key_history",
    "last_",
    "local_session",
    "max_",
    "metrics",
    "min_",
    "read_state",
    "record",
    "rescale",
    "run",
    "savepoint",
    "serve_metrics",
    "start",
    "stop_with_savepoint",
    "sum_",
    "write_state",
]


def _tools() -> Tools | None:
    try:
        from pillarbox_tools import entry
    except ModuleNotFoundError as error:
        if error.name != "pillarbox_tools":
            raise
        return None
    return entry


provide(_tools)
