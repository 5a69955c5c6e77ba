"""Two streams in one operator: connected, broadcast and joined ones, with the names of PyFlink (joins: of Flink).

Imports `streams`, `windows`, `checks` and the layers below `_datastream`. Start with `connected_streams.py`. Weak spot:
`joined_streams.py` has all kinds of joins, with a builder for each.
"""
