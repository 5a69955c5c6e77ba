"""Budgets: limits on the rate and the cost of requests, across processes.

Start with `budget.py`, the user's value, and `account.py`, the arithmetic of one budget. A `Ledger` keeps accounts:
`ledger.py` in this process, `driver_ledger.py` in the driver, with messages signed by `wire.py`. `gate.py` holds an
event loop's booked slots. Weak spot: a request counts from the time of its slot, but a function in a thread begins a
little later, so that a service may see short bursts.
"""
