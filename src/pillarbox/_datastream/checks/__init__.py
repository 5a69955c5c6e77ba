"""Checks user arguments when a program is built, and creates errors for missing methods.

Imports lower layers, and stream classes only as types. Start with `given_functions.py`. Weak spot: `code_search.py`
searches byte code for timers, so it misses calls of methods whose names are computed at run time.
"""
