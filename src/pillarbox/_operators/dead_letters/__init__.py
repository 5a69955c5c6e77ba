"""Sends records whose function raised to a side output, if the program requests it.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes the function's effects. Weak spot:
other effects than changes of state, timers and output, such as changed attributes of the function, are not undone.
"""
