"""Two streams in one operator: connected, broadcast and joined ones, with PyFlink's names (joins: Flink's).

Imports `streams`, `checks`, `columns` and the layers below `_datastream`. Start with `connected_streams.py`. Weak spot:
`joined_streams.py` has all kinds of joins, with a builder for each.
"""
