"""Streams that are divided into windows, as users transform them, with PyFlink's names.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `windowed.py`, then `windowed_stream.py`;
`columnar_windows.py` has aggregates of columns. Weak spot: which of several operators a window gets is decided here, by
what the user gave.
"""
