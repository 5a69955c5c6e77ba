"""Sends records whose function raised to a side output, if the program requests it.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes the function's effects. Weak spot:
effects elsewhere (the function's fields, other systems) cannot be undone.
"""
