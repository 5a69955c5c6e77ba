"""Joins of two keyed streams: by intervals of event time, and by windows.

Imports `frame`, `functions` and `windowing`. Start with `interval_join.py`; `co_group.py` is a window operator with two
inputs. Joins of columns are in `columnar/joins`. Weak spot: there are two interval joins, of records and of columns,
whose results tests compare.
"""
