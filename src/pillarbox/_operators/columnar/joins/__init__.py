"""Columnar interval joins: binary search pairs rows of two streams with equal keys and near event times.

Imports `columnar`, `joins`, `windowing`, `frame` and `functions`. Start with `join_operator.py`; `join_side.py` stores
one side. Weak spot: rows wait in sorted segments, which are merged as a side grows.
"""
