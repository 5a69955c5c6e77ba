"""Plans programs as DataFrames, and registers the planned programs.

Start with `plan.py`, then `registry.py`, which finds the programs in a query's plan. Weak spot: in a classic session,
plans are read through private Java classes (`session/java.py`).
"""
