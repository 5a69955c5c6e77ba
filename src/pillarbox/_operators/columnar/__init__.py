"""Columnar windows and joins, which group rows with Arrow before and after the shuffle, not with Python for each row.

Imports `frame` and `windowing`. Start with `program.py`, then `accumulators.py` and `window_operator.py`. Weak spot:
each aggregate handles null, NaN and overflow itself, and only tests check that the results equal Spark's.
"""
