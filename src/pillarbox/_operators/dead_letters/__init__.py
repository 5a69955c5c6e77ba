"""Emits a record to a side output if its function raises and the program requests this.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes the function's effects. Weak spot:
only changes of state, timers and output are undone, but not, for example, changes of the function's attributes.
"""
