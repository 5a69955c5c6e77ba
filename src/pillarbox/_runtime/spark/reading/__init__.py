"""Reads the state in a checkpoint or savepoint, and its sizes, without the program.

Start with `inspection.py`, then `state_reader.py`. Weak spot: columns need types, so state without a declared type
becomes VARIANT (`state_columns.py`).
"""
