"""Runs keyed functions with ``async def``: a key's records and timers in sequence, different keys concurrently.

Imports `async_io`, `connected`, `keyed`, `dead_letters`, `frame` and `functions`. Start with `operator.py`, `runner.py`
and `steps.py`. Weak spot: a step that blocks stops the whole task.
"""
