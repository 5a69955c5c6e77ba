"""Runs tasks in a home process or a Spark worker.

Start with `residency.py`, then `level_tasks.py`. Only `channel.py` is thread-safe. Weak spot: tasks receive parameters
as the query's settings, which are untyped strings (`task_info.py`).
"""
