"""Reads the files, notes and state logs of a query's checkpoint, from outside the query.

Start with `checkpoint.py` (epochs and notes). `state.py` reads state logs with Spark's own readers. Weak spot: a
running query may delete an epoch that is being read.
"""
