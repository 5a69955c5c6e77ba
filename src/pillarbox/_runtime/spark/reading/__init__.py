"""Reads a checkpoint or a savepoint without the program: its sizes, and its state as a DataFrame.

Start with `inspection.py`, then `state_reader.py`. Weak spot: a DataFrame's columns need types, so state without a
declared type becomes VARIANT (`state_columns.py`).
"""
