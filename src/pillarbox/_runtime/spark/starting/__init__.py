"""Starting a query, and what is done to a stopped one: its settings, its sink, its first epoch, another parallelism.

Imports `plan`, `checkpoint`, `savepoint` and what is below them. Start with `start.py`; `started.py` remembers what was
started, `closing.py` ends what it leaves in executors. Weak spot: the settings belong to the whole session, so one
query starts after the other.
"""
