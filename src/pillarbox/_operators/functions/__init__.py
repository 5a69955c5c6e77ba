"""What users implement, with the names of PyFlink, and the objects that functions are given.

Imports the layers below `_operators`, and no operator. Start with `basic.py`; `contexts.py` is how a function reaches
its task. Windows and async I/O have functions of their own, next to their operators. Weak spot: a context is one object
for all calls, so a function must not keep it.
"""
