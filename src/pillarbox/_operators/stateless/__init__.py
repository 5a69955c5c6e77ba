"""Operators of streams without keys: map, flat_map, filter, process, and a program's sinks.

Imports `frame` and `functions`. Start with `map.py`, a whole operator on one screen. Weak spot: `typed_results.py`
wraps the outputs of other operators and skips conversions that a sink does, so it must know the sinks.
"""
