"""Queries that run: their end between two epochs, requests from the command line, the dashboard and exporters.

Imports `starting`, `watching` and what is below them. Start with `query.py`, then `ending.py`. Weak spot: a query that
its writer's own `start()` started has nobody who looks after it, unless it is shown or exported.
"""
