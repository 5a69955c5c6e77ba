"""Savepoints on Spark: written from a checkpoint, written from a DataFrame, and opened.

Imports `checkpoint` and `settings`; the tables are those of `_state/savepoint`. Start with `savepoint.py`. Weak spot:
Spark deletes old epochs while one is being read, which `savepoint.py` has to notice.
"""
