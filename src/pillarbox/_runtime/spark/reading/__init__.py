"""What users see of a checkpoint or a savepoint without the program: its figures, and its state as a DataFrame.

Imports `checkpoint`, `savepoint`, `settings` and `rows`. Start with `inspection.py`, then `state_reader.py`. Weak spot:
columns need types, and state that declares none is shown as text (`state_columns.py`).
"""
