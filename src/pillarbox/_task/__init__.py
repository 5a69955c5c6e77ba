"""One subtask: the task, its chain, input, writer, checkpoints and metrics."""
