"""One subtask: the task, its chain, input, writer, checkpoints and metrics."""

from pillarbox._task.lifecycle import TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import REPORT_TARGET

__all__ = ["REPORT_TARGET", "MultipleInputStreamTask", "SourceStreamTask", "StreamTask", "TaskState"]
