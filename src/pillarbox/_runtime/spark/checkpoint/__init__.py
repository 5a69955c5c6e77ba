"""Reads a query's checkpoint from outside: its files, its programs' notes, and its state logs.

Imports `settings` and `files.py`. Start with `checkpoint.py`: epochs and notes. `state.py` reads state logs with
Spark's own readers. Weak spot: Spark may delete an epoch while it is being read.
"""
