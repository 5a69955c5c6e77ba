"""Budgets: how many requests may begin, what they may cost, and which process decides that.

Start with `budget.py`, the value that users write, and `account.py`, the arithmetic of one budget by any clock.
A `Ledger` keeps accounts: `ledger.py` in this process, `driver_ledger.py` in the driver, which `wire.py` signs messages
for. `gate.py` holds the slots that an event loop has booked. Weak spot: a request is counted when its slot is taken,
and a function that runs in a thread begins a little later.
"""
