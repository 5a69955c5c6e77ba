"""Async I/O: concurrent requests to a service (A1 to A10).

Imports `api`, `loop`, `frame` and `functions`. Start with `operator.py`, then `in_flight.py`, which owns the requests.
Weak spot: pending requests at the end of an epoch (`on_barrier`).
"""
