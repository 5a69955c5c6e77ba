"""Streams, as users transform them, with PyFlink's names; and the ends of a program.

Imports `checks`, `columns` and the layers below `_datastream`; the other packages for their types, as methods return
their streams. Start with `stream.py`, then `data_stream.py`. Weak spot: streams name each other, as the API does.
"""
