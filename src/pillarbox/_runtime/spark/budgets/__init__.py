"""The driver's ledger: the accounts of its queries' budgets.

Start with `server.py`, which books slots for executors' event loops. `spent.py` writes the charges of ceilings into
checkpoints. Imports the layers below `_runtime`, and modules directly in `_runtime/spark`. Weak spot: while the driver
stands still, no request begins.
"""
