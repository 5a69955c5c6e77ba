"""Reads a query's checkpoint from outside: its files, notes, and state logs.

Start with `checkpoint.py`: epochs and notes. `state.py` reads state logs with Spark's own readers. Weak spot: a running
query deletes old epochs, possibly while they are being read.
"""
