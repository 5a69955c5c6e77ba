"""The ledger in the driver: the accounts of the budgets of all its queries.

Start with `server.py`, which books slots for the event loops of executors; `spent.py` writes the charges
of ceilings into checkpoints. Imports the layers below `_runtime`, and modules right in `_runtime/spark`. Weak spot: a
driver that stands still lets nobody begin.
"""
