"""The ledger in the driver: the accounts of the budgets of all its queries.

`server.py` books slots for the event loops of executors, `spent.py` keeps what ceilings were charged with beside the
checkpoints. Weak spot: a driver that stands still lets nobody begin.
"""
