"""Windowed streams, with PyFlink's names.

Imports `streams`, `checks` and lower layers. Start with `windowed.py`, then `windowed_stream.py`; `columnar_windows.py`
has aggregates of columns. Weak spot: the window operator is chosen here, far from the operators' code.
"""
