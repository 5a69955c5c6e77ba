"""Windowed streams, with PyFlink's names.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `windowed.py`, then `windowed_stream.py`;
`columnar_windows.py` has aggregates of columns. Weak spot: this package chooses the window operator from the user's
arguments, so a new window operator must be added here, too.
"""
