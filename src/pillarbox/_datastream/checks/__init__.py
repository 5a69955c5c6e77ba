"""Checks of users' arguments when the program is built, and errors for methods that do not exist.

Imports the layers below `_datastream`, and streams for their types only. Start with `given_functions.py`; `schemas.py`
checks columns, and `missing.py` names replacements for Flink methods. Weak spot: `code_search.py` reads byte code to
find timers, and misses names that a program makes at run time.
"""
