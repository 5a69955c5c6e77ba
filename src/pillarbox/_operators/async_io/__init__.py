"""Async I/O: asking a service about records, many at a time (A1 to A10).

``options`` are the user's choices, ``function`` and ``retry`` the classes that users implement. ``operator`` is a shell
around ``in_flight``, which owns, in the mailbox thread, the ``queue`` of ``request`` objects, ``batches``,
``cache``, ``deadlines``, ``results`` and ``counters``. ``host`` runs the user's function beside it: an ``event_loop``
in a thread of its own, ``workers`` on it, and ``threads`` for plain functions; ``libraries`` imports what only some
options need.
"""
