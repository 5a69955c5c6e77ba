"""Savepoints on Spark: writing from a checkpoint or from a DataFrame, and reading.

Imports `checkpoint`, `settings` and `rows`; `_state/savepoint` has the tables. Start with `savepoint.py`. Weak spot: a
savepoint is complete only if its manifest exists, so a reader must check that first.
"""
