"""Records whose function raised, sent to a side output if the program asks for it.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes the function's effects. Weak spot:
effects elsewhere (the function's fields, other systems) cannot be undone.
"""
