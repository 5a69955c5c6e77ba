"""Queries that run: their progress, their end between two epochs, and requests from the command line.

Imports `starting` and what is below it. Start with `query.py`, then `ending.py`; `observing.py` has the public methods
that the tools implement. Weak spot: a query that its writer's own `start()` started is watched only if somebody asks.
"""
