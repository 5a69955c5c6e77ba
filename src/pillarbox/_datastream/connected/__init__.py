"""Connected, broadcast and joined streams: two streams in one operator. Names are PyFlink's, or Flink's for joins.

Imports `streams`, `windows`, `checks` and lower layers. Start with `connected_streams.py`. Weak spot:
`joined_streams.py` has a builder class for each kind of join, so a new option must be added to each.
"""
