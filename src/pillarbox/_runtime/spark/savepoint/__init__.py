"""Savepoints on Spark: written from a checkpoint, written from a DataFrame, and opened.

Imports `checkpoint`, `settings` and `rows`; the tables are those of `_state/savepoint`. Start with `savepoint.py`. Weak
spot: a savepoint is complete when its manifest is there, so what reads one must ask for the manifest first.
"""
