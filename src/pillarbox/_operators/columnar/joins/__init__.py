"""Columnar interval joins: binary search pairs rows of two streams with equal keys and close event times.

Imports `columnar`, `joins`, `windowing`, `frame` and `functions`. Start with `join_operator.py`; `join_side.py` stores
one side. Weak spot: each side keeps sorted segments and merges them as it grows, so a mistake in their order loses
pairs silently.
"""
