"""What users give to streams, checked while the program is being built, and errors for methods that do not exist.

Imports the layers below `_datastream`, and streams for their types only. Start with `given_functions.py`; `schemas.py`
is about columns, and `missing.py` says what to call instead of a method of Flink's that a stream does not have. Weak
spot: `code_search.py` reads a user's code for a name, and sees only what Python can show of it.
"""
