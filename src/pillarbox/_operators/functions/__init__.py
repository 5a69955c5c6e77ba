"""Functions that users implement, with PyFlink's names, and the context objects that they receive.

Imports the layers below `_operators`, and no operator. Start with `basic.py`; `contexts.py` connects a function to its
task. Functions of windows and async I/O are next to their operators. Weak spot: one context object serves all calls, so
a function must not keep it.
"""
