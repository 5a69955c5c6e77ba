"""Tasks, which run subtasks, with their operators, input, output, checkpoints and metrics."""
