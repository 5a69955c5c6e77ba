"""The user's interface to windows: assigners, triggers, evictors and window functions, as in Flink.

Imports `functions`, `frame` and the layers below `_operators`. Start with `assigner.py`, then `triggers.py`. Weak spot:
with a time zone, a day may have 23 or 25 hours, so windows of days have no fixed length (`window_starts.py`).
"""
