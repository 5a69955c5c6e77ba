"""The driver's ledger, which counts the use of budgets that the driver's queries share.

Start with `server.py`. `spent.py` stores the units charged to ceilings in checkpoints. Weak spot: all requests wait
while the driver pauses, for example for garbage collection.
"""
