"""Async I/O: concurrent requests to a service.

Imports `api`, `loop`, `frame` and `functions`. Start with `operator.py` and `in_flight.py`, which owns the requests.
Weak spot: whether requests that are pending at the end of an epoch are awaited, carried over or repeated depends on
`on_barrier` and on whether the task stays in its process.
"""
