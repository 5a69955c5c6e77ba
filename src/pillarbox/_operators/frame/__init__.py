"""Parts of operators: base classes, output, keys, calls of user code, and shared resources.

Imports `functions` and the layers below `_operators`. Start with `operator.py`, then `function_operator.py` and
`keyed_operator.py`. Weak spot: `collector.py` decides by a list of types what to copy.
"""
