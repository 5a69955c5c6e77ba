"""Limits the rate and cost of requests across processes, with budgets.

Start with `budget.py`, the user's class, and `account.py`, a budget's arithmetic. A `Ledger` holds the accounts of all
budgets, in this process (`ledger.py`) or, over signed messages (`wire.py`), in the driver (`driver_ledger.py`). Weak
spot: a request counts at its booked slot, but a function in a thread starts a little later, so a service may receive
    short bursts.
"""
