"""The driver's ledger: the accounts of its queries' budgets.

Start with `server.py`. `spent.py` writes the charges of ceilings into checkpoints. Weak spot: if the driver pauses, for
example for garbage collection, all requests wait.
"""
