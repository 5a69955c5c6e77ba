"""Functions that users implement, as in PyFlink, and the context objects that they receive.

Imports the layers below `_operators`, but no operator. Start with `basic.py`; `contexts.py` connects a function to its
task. Weak spot: one context object serves all calls, so a function that stores it later reads another record's context.
"""
