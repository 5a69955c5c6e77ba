"""Savepoints on Spark: written from a checkpoint, a DataFrame or a Spark query; read; and restored.

Start with `savepoint.py`, then `restore_host.py`, which builds logs from tables. Weak spot: a savepoint is complete
only if its manifest exists, so a reader must check that first.
"""
