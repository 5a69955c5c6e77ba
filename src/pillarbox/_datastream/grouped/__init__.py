"""Spark's stateful methods of grouped DataFrames, run by pillarbox.

Start with `grouped_data.py`, which is `group_by`. It may import streams and the environment. Weak spot: wrong states
are refused when the DataFrame is made, and not when its query starts, as Spark does.
"""
