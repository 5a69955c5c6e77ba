"""Operators of streams without keys: map, flat_map, filter, process, and the ends of a program.

Imports `frame` and `functions`. Start with `map.py`: a whole operator on one screen. An operator makes one pass for
each run of records. Weak spot: `typed_results.py` wraps the outputs of other operators, so it depends on the sinks.
"""
