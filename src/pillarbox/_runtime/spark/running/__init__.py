"""Follows running queries, ends them between two epochs, and answers requests from the command line.

Start with `query.py`, then `ending.py`. `monitoring.py` has the public functions that the tools implement. Weak spot: a
query that was started with the writer's own `start()` is not watched until another function needs it.
"""
