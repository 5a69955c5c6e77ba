"""From a program to one DataFrame plan, and what a plan and its progress tell.

Imports `settings`, `rows`, `tasks`, `homes` and `worker`. Start with `plan.py`, then `registry.py`: which programs a
query holds. Weak spot: the plan of a classic session is read from Spark's own objects (`session/java.py`).
"""
