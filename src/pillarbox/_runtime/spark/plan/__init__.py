"""One DataFrame plan for a program, and a registry of planned programs.

Start with `plan.py`, then `registry.py`, which finds the programs in a query's plan. Weak spot: a classic session's
plan is read from Spark's own objects (`session/java.py`).
"""
