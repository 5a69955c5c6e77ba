"""Columnar interval joins, which use binary search to find pairs of rows with equal keys and near event times.

Imports `columnar`, `joins`, `windowing`, `frame` and `functions`. Start with `join_operator.py`. Weak spot: each side
merges sorted segments as it grows. A mistake in their order would silently lose pairs.
"""
