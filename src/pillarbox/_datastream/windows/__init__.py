"""Windowed streams, with PyFlink's names.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `windowed.py`, then `windowed_stream.py`;
`columnar_windows.py` has aggregates of columns. Weak spot: the choice of a window's operator is made here, from the
user's arguments, and not in the operators' package.
"""
