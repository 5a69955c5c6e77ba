"""Streams, as users transform them, with PyFlink's names; and the ends of a program.

Imports `checks` and the layers below `_datastream`; the other packages for their types, and in methods that return
their streams. Start with `stream.py`, then `data_stream.py`. Weak spot: streams name each other, as the API does.
"""
