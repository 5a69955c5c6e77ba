"""What operators are made of: the operator, its output, keys, calls of user code, and what tasks of a process share.

Imports `functions` and the layers below `_operators`. Start with `operator.py`, then `function_operator.py` and
`keyed_operator.py`, of which most operators are subclasses. Weak spot: `collector.py` copies what functions may
change later, by a list of types.
"""
