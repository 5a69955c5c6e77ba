"""Makes and records service calls, for ``ctx.call`` in async keyed functions.

Imports `async_io/api`, `async_io/loop`, `budgets`, `frame` and `functions`. Start with `caller.py`, `records.py` and
`journal.py`. Weak spot: if a process dies after a service has answered and before the answer is recorded, the call is
repeated.
"""
