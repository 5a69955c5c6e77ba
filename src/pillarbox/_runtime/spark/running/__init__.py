"""Queries that run: those that this process started, their end between two epochs, and requests from the command line.

Imports all other packages of `_runtime/spark`. Start with `query.py`, then `started.py`. Weak spot: a query that its
writer's own `start()` started is noticed late.
"""
