"""Async I/O: asking a service about records, many at a time (A1 to A10).

Imports `frame` and `functions`. Start with ``operator``: a shell around ``in_flight``, which owns, in the mailbox
thread, the ``queue`` of ``request`` objects, ``batches``, ``cache``, ``deadlines``, ``results`` and ``counters``.
``options`` are the user's choices, ``function`` and ``retry`` the classes that users implement. ``loop`` runs the
user's function beside the mailbox thread. Weak spot: requests that are in flight when an epoch ends (``on_barrier``).
"""
