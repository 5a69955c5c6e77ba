"""Savepoints on Spark: written from a checkpoint, a DataFrame or a Spark query; read; and restored.

Imports `checkpoint`, `worker` and the layers below; `_state/savepoint` has the tables. Start with `savepoint.py`, then
`restore_host.py`, which builds logs from tables; `starting/first_epoch.py` runs it. Weak spot: a savepoint is complete
only if its manifest exists, so a reader must check that first.
"""
