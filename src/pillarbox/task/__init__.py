"""One subtask: the task, its chain, input, writer, checkpoints and metrics."""

from pillarbox.task.checkpoint import SubtaskCheckpointCoordinator
from pillarbox.task.input_gate import InputGate
from pillarbox.task.lifecycle import TaskEvent, TaskState
from pillarbox.task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox.task.operator_chain import OperatorChain
from pillarbox.task.record_writer import RecordWriter
from pillarbox.task.source_stream_task import SourceStreamTask
from pillarbox.task.stream_task import StreamTask
from pillarbox.task.task_input import DataInputStatus
from pillarbox.task.vertex import (
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
    "SubtaskCheckpointCoordinator",
    "TaskEvent",
    "TaskState",
    "Vertex",
    "channel_code",
    "edge_id",
]
