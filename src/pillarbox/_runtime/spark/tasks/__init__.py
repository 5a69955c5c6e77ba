"""Tasks in a process (a home or a Spark worker), and their view of the checkpoint.

Imports only `session` and `failures.py` of `_runtime/spark`. Start with `residency.py`, then `level_tasks.py`. The
thread that runs the tasks owns all of it except `channel.py`, which connects processes. Weak spot: settings of the
query carry a task's parameters (`task_info.py`).
"""
