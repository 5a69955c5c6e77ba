"""The user's interface to windows: assigners, triggers, evictors and window functions, as in Flink.

Imports `functions`, `frame` and the layers below `_operators`. Start with `assigner.py` and `triggers.py`. Weak spot:
with a time zone, day windows have no fixed length, because a day may have 23 or 25 hours (`window_starts.py`).
"""
