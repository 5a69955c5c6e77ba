"""Tasks that live in a process, a home or a worker of Spark's, and what they are told about the checkpoint.

Imports `session` and `failures.py` alone of `_runtime/spark`. Start with `residency.py`, then `level_tasks.py`. All of
it belongs to the thread that runs the tasks, but for `channel.py`, which carries messages to other processes. Weak
spot: what a task is told travels as settings of the query (`task_facts.py`).
"""
