"""The users' interface to windows: assigners, triggers, evictors and window functions, with their contexts.

Imports `functions`, `frame` and the layers below `_operators`; no operator. Start with `assigner.py`, then
`triggers.py`; everything behaves as the classes of the same names in Flink. Weak spot: windows of days in a time zone
(`window_starts.py`), as a day may have 23 or 25 hours.
"""
