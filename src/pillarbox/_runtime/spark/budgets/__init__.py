"""The driver's ledger: the accounts of the budgets that its queries share.

Start with `server.py`. `spent.py` writes the units charged to ceilings into checkpoints. Weak spot: while the driver
pauses, for example for garbage collection, all requests wait.
"""
