"""Spark's stateful methods of grouped DataFrames, run by pillarbox.

Start with `grouped_data.py`, which is `group_by`. It may import streams and the environment. Weak spot: invalid states
are refused when the DataFrame is built; in Spark, when its query starts.
"""
