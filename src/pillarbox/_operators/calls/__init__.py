"""Makes and records service calls, for ``ctx.call`` in async keyed functions.

Imports `async_io/api`, `async_io/loop`, `budgets`, `frame` and `functions`. Start with `caller.py`, then `records.py`
and `journal.py`. Weak spot: if a process dies between a service's answer and its recording, the call is repeated.
"""
