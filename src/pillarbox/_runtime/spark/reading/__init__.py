"""Reads a checkpoint or savepoint without the program: sizes, and state as a DataFrame.

Start with `inspection.py`, then `state_reader.py`. Weak spot: columns need types, so state without a declared type
becomes VARIANT (`state_columns.py`).
"""
