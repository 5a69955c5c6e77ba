"""Two streams in one operator: connected, broadcast and joined streams, with PyFlink's names (joins: Flink's).

Imports `streams`, `windows`, `checks` and the layers below `_datastream`. Start with `connected_streams.py`. Weak spot:
`joined_streams.py` has a separate builder class for each kind of join, so an option must be added to each.
"""
