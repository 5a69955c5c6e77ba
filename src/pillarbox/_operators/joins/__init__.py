"""Joins of two keyed streams, by event-time intervals or by windows.

Imports `frame`, `functions` and `windowing`; columnar joins are in `columnar/joins`. Start with `interval_join.py`.
Weak spot: interval joins exist twice, for records and for columns, and only tests ensure equal results.
"""
