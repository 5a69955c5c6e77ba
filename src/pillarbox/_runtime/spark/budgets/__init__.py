"""The driver's ledger, which counts the use of the budgets that the driver's queries share.

Start with `server.py`. `spent.py` writes the units charged to ceilings into checkpoints. Weak spot: while the driver
pauses, for example for garbage collection, all requests wait.
"""
