"""Tasks in a process (a home or a Spark worker), and their view of the checkpoint.

Start with `residency.py`, then `level_tasks.py`. Only `channel.py` may be used by other threads than the tasks' own.
Weak spot: tasks receive their parameters through settings of the query, which are strings without a type
(`task_info.py`).
"""
