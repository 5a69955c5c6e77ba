"""Runs keyed functions with ``async def``: one key's records and timers in sequence, different keys concurrently.

Imports `async_io`, `connected`, `keyed`, `dead_letters`, `frame` and `functions`. Start with `operator.py`. `runner.py`
runs the elements (records and timers) in the event loop of `loop.py`, which the mailbox thread drives; `steps.py` makes
an element's key current during each step of its coroutine; `carried.py` puts unfinished elements into a snapshot. Weak
spot: a step that blocks stops the whole task.
"""
