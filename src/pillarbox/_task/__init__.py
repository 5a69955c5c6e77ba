"""Tasks, which run subtasks: operators, input, output, checkpoints and metrics."""
