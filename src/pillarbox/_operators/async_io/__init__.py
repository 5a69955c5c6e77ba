"""Async I/O: asking a service about records, many at a time (A1 to A10).

Imports `api`, `loop`, `frame` and `functions`. Start with `operator.py`: a shell around `in_flight.py`, which owns, in
the mailbox thread, the queue, batches, deadlines, results and counters of requests. Weak spot: requests that are in
flight when an epoch ends (`on_barrier`).
"""
