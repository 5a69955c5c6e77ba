"""The task of a subtask: its operators, input, writer, checkpoints and metrics."""
