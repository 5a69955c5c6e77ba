"""Budgets: limits on the rate and the cost of requests, across processes.

Start with `budget.py`, the user's class, and `account.py`, the arithmetic of one budget. A `Ledger` keeps accounts:
`ledger.py` in this process, `driver_ledger.py` in the driver, over a connection with signed messages (`wire.py`).
`gate.py` holds the slots that an event loop has booked. Weak spot: a request counts at the time of its slot, but a
function in a thread starts a little later, so a service may see short bursts.
"""
