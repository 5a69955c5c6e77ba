"""Interval joins of columns: rows of two streams with equal keys and near event times, found by binary search.

Imports `columnar`, `joins`, `windowing`, `frame` and `functions`. Start with `join_operator.py`; `join_side.py` is what
one side keeps, in memory and in the state log. Weak spot: rows wait in sorted segments, which are merged as a side
grows.
"""
