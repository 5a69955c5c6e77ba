"""Runs Spark's stateful methods of grouped DataFrames on pillarbox.

Imports streams and the environment. Start with `grouped_data.py`, which defines `group_by`. Weak spot: invalid state
declarations raise when the DataFrame is built; in Spark, they raise when the query starts.
"""
