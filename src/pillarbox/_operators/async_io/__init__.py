"""Async I/O: requests to a service, many at a time (A1 to A10).

Imports `api`, `loop`, `frame` and `functions`. Start with `operator.py`, a thin shell around `in_flight.py`, which owns
the requests' queue, batches, deadlines, results and counters in the mailbox thread. Weak spot: pending requests at the
end of an epoch (`on_barrier`).
"""
