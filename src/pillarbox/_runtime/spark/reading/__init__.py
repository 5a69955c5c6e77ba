"""Reads state and its sizes from a checkpoint or savepoint, without the program.

Start with `inspection.py`, then `state_reader.py`. Weak spot: state without a declared type becomes VARIANT, because
columns need types (`state_columns.py`).
"""
