"""Savepoints on Spark: written from a checkpoint, written from a DataFrame, and opened.

Imports `checkpoint`, `settings` and `rows`; `_state/savepoint` has the tables. Start with `savepoint.py`. Weak
spot: a savepoint is complete when its manifest exists, so what reads one must ask for the manifest first.
"""
