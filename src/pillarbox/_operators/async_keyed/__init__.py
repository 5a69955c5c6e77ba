"""Keyed functions with ``async def``. Elements of one key run one after another, different keys concurrently.

Imports `async_io`, `connected`, `keyed`, `dead_letters`, `frame` and `functions`. Start with `operator.py`. `runner.py`
runs the elements in the event loop of `loop.py`, which the mailbox thread drives; `steps.py` sets an element's key
around each step of its coroutine; `carried.py` puts unfinished elements into a snapshot. Weak spot: a step that blocks
stops the whole task.
"""
