"""Joins of two keyed streams: by event-time intervals, and by windows.

Imports `frame`, `functions` and `windowing`. Start with `interval_join.py`; `co_group.py` is a window operator with two
inputs. Columnar joins are in `columnar/joins`. Weak spot: two interval joins, of records and of columns, whose results
tests compare.
"""
