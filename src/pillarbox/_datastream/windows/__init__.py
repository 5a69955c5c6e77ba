"""Streams that are divided into windows, as users transform them, with PyFlink's names.

Imports `streams`, `checks`, `columns` and the layers below `_datastream`. Start with `windowed_stream.py`. Weak spot:
which of four operators a window gets is decided here, by what the user gave.
"""
