"""One subtask: the task, its chain, input, writer, checkpoints and metrics."""

from pillarbox._task.lifecycle import TaskEvent, TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.network.input_gate import InputGate
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.network.task_input import DataInputStatus
from pillarbox._task.operator_chain import OperatorChain
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import (
    REPORT_TARGET,
    ChainInput,
    ChainNode,
    Consumers,
    Edge,
    InputEdge,
    Vertex,
    channel_code,
    edge_id,
)

__all__ = [
    "REPORT_TARGET",
    "ChainInput",
    "ChainNode",
    "Consumers",
    "DataInputStatus",
    "Edge",
    "InputEdge",
    "InputGate",
    "MultipleInputStreamTask",
    "OperatorChain",
    "RecordWriter",
    "SourceStreamTask",
    "StreamTask",
    "TaskEvent",
    "TaskState",
    "Vertex",
    "channel_code",
    "edge_id",
]
