"""Runs keyed functions with ``async def``: a key's records and timers in sequence, different keys concurrently.

Imports `async_io`, `connected`, `keyed`, `dead_letters`, `frame` and `functions`. Start with `operator.py`. `runner.py`
runs elements (records and timers) in the mailbox thread's event loop (`loop.py`), `steps.py` makes an element's key
current during each step of its coroutine, and `carried.py` stores unfinished elements in a snapshot. Weak spot: a step
that blocks stops the whole task.
"""
