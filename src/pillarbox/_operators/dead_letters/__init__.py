"""Records whose function raised, sent to a side output where the program asks for it.

Imports `frame` and `functions`. Start with `dead_letter.py`; `guarded.py` undoes what the function has done before it
raised. Weak spot: what a function has done elsewhere (its fields, other systems) cannot be undone.
"""
