"""Streams and sinks, with PyFlink's names.

Imports `checks` and lower layers. Other packages of `_datastream` are imported for types, and inside methods that
return their streams. Start with `stream.py`, then `data_stream.py`. Weak spot: because of these imports, no module can
be understood alone.
"""
