"""Parts of operators: base classes, output, keys, calls of user code, and shared resources.

Imports `functions` and the layers below `_operators`. Start with `operator.py`, then `function_operator.py` and
`keyed_operator.py`. Weak spot: `collector.py` lists the types whose values need no copy; if this list is wrong,
functions can change emitted records.
"""
