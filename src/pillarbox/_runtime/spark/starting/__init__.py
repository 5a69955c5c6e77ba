"""Starting a query: its settings, which are on the session only meanwhile; its sink; the first epoch from a savepoint.

Imports `plan`, `checkpoint`, `savepoint` and `settings`. Start with `start.py`. Weak spot: what `DataStreamWriter` will
do has to be read from its private fields (`writer.py`).
"""
