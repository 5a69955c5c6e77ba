"""Operators of streams without keys: map, flat_map, filter, process, and a program's sinks.

Imports `frame` and `functions`. Start with `map.py`, a whole operator on one screen. Weak spot: `typed_results.py`
skips conversions that a sink makes anyway, so changing a sink can break it.
"""
