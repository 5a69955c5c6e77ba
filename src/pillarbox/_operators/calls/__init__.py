"""Recorded calls of services, ``ctx.call`` in async keyed functions (R25 to R31).

Imports `async_io/api`, `async_io/loop`, `budgets`, `frame` and `functions`. Start with `caller.py`. `digests.py` names
elements and calls, `records.py` keeps the answers of an element, `journal.py` writes them to a file system. Weak spot:
between a service's answer and its record, a process may die: the call is then made again.
"""
