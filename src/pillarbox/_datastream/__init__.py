"""The public API: streams, functions and the environment, with PyFlink's names.

Start with `environment/environment.py`, then `streams/data_stream.py`. A method checks what it is given (`checks`),
and adds a step to the program of `_graph`. Weak spot: streams name each other, as the API does.
"""

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
from pillarbox._datastream.streams.async_data_stream import AsyncDataStream
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._datastream.streams.results import CollectedResults, DataStreamSink
from pillarbox._datastream.windows.all_windowed_stream import AllWindowedStream
from pillarbox._datastream.windows.windowed_stream import WindowedStream
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.fallback import AsyncFallback, fallback
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFailure, AsyncFunction
from pillarbox._operators.async_io.api.retry import AsyncRetryPredicate, AsyncRetryStrategy
from pillarbox._operators.dead_letters.dead_letter import DeadLetter
from pillarbox._operators.functions.basic import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
)
from pillarbox._operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
)
from pillarbox._operators.functions.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from pillarbox._operators.functions.joins import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from pillarbox._operators.functions.metric_group import Counter, Distribution, Meter, MetricGroup
from pillarbox._operators.functions.two_streams import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)

__all__ = [
    "AllWindowedStream",
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
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoGroupedStreams",
    "CoGroupedWindows",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectedResults",
    "ConnectedStreams",
    "Counter",
    "DataStream",
    "DataStreamSink",
    "DeadLetter",
    "Distribution",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "IntervalJoin",
    "JoinFunction",
    "JoinedStreams",
    "JoinedWindows",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "Meter",
    "MetricGroup",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimerService",
    "WindowedStream",
    "fallback",
]
