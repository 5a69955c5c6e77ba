"""Windows and joins of columns: rows are grouped by Arrow, before the shuffle and after it, without Python functions.

Imports `frame` and `windowing`. Start with `program.py`, then `accumulators.py` and `window_operator.py`. Rows
become partial results, which are merged, and become results. Weak spot: null, NaN and overflow are each aggregate's
own matter, so tests compare every aggregate with Spark's.
"""
