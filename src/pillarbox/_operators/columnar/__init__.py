"""Columnar windows and joins, which process groups of rows with Arrow, before and after the shuffle.

Imports `frame` and `windowing`. Start with `program.py`, `accumulators.py` and `window_operator.py`. Weak spot: each
aggregate handles null, NaN and overflow itself, and only tests ensure that the results equal Spark's.
"""
