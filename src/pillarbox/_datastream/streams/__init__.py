"""Streams and sinks, with PyFlink's names.

Imports `checks` and the layers below `_datastream`; the other packages for types, and inside methods that return their
streams. Start with `stream.py`, then `data_stream.py`. Weak spot: the modules refer to each other, as the API does.
"""
