"""Queries that run: their end between two epochs, and requests from the command line.

Imports `starting` and what is below it. Start with `query.py`, then `ending.py`. Weak spot: a query that its writer's
own `start()` started has nobody who looks after it.
"""
