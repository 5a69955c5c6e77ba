"""Savepoints on Spark. They are written from a checkpoint, a DataFrame or a Spark query, read, and restored.

Start with `savepoint.py`, then `restore_host.py`, which builds logs from tables. Weak spot: a savepoint is only
complete if its manifest exists, so every reader must check that first.
"""
