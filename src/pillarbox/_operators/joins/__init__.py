"""Joins of two keyed streams: by event-time intervals, and by windows.

Imports `frame`, `functions` and `windowing`; `columnar/joins` has columnar joins. Start with `interval_join.py`. Weak
spot: two interval joins, of records and of columns, whose results tests compare.
"""
