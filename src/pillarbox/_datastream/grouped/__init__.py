"""Spark's stateful methods of grouped DataFrames, run by pillarbox.

Imports streams and the environment. Start with `grouped_data.py`, which is `group_by`. Weak spot: invalid states are
refused when the DataFrame is built; in Spark, when its query starts.
"""
