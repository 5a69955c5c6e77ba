"""Reads a checkpoint or a savepoint without the program: its figures, and its state as a DataFrame.

Start with `inspection.py`, then `state_reader.py`. Weak spot: columns need types, and state without a declared type
becomes VARIANT (`state_columns.py`).
"""
