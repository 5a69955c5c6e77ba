"""Emits a record to a side output if the function that processes the record raises and the program requests this.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes the function's effects. Weak spot:
only changes of state, timers and output are undone, and not changed attributes of the function, for example.
"""
