"""Checks of user arguments when a program is built, and errors for missing methods.

Imports the layers below `_datastream`, and streams for their types only. Start with `given_functions.py`. Weak spot:
`code_search.py` searches byte code for timers, so it misses calls by a name computed at run time.
"""
