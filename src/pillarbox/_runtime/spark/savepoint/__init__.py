"""Writes savepoints (from a checkpoint, a DataFrame or a Spark query), reads and restores them.

Start with `savepoint.py`, then `restore_host.py`, which converts their tables to state logs. Weak spot: a savepoint
without a manifest is incomplete, so every reader must check for it first.
"""
