"""Tasks in a process (a home or a Spark worker), and their view of the checkpoint.

Start with `residency.py`, then `level_tasks.py`. Only `channel.py` is used by other threads than the tasks' own. Weak
spot: settings of the query carry a task's parameters (`task_info.py`).
"""
