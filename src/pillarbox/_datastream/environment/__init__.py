"""Where a program starts: sources, parallelism, savepoints that it starts from, and running it.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `environment.py`. Weak spot: an environment
belongs to a session, and checks it in several places.
"""
