"""Limits the rate and the cost of requests across processes, with budgets.

Start with `budget.py`, the user's class, and `account.py`, the arithmetic of one budget. A `Ledger` holds the accounts
of all budgets, either in this process (`ledger.py`) or in the driver (`driver_ledger.py`, over signed messages,
`wire.py`). `gate.py` holds the slots (start times of requests) that an event loop has booked. Weak spot: a request
counts at its slot, but a function in a thread starts a little later, so a service may see short bursts.
"""
