"""Reads a query's checkpoint from outside the query: its files, notes, and state logs.

Start with `checkpoint.py` (epochs and notes). `state.py` reads state logs with Spark's own readers. Weak spot: a
running query may delete an epoch that is being read.
"""
