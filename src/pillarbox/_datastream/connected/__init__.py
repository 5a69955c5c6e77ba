"""Connected, broadcast and joined streams: two streams in one operator. Names are PyFlink's; join names are Flink's.

Imports `streams`, `windows`, `checks` and the layers below `_datastream`. Start with `connected_streams.py`. Weak spot:
`joined_streams.py` has a builder class for each kind of join, so a new option must be added to each.
"""
