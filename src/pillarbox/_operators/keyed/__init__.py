"""Operators of keyed streams: process, reduce, field aggregation, deduplicate, order by event time.

Imports `frame` and `functions`. Start with `process.py`, the base of most programs. `_state` has state and timers. Weak
spot: `deduplicate.py` has its own fast path for whole runs.
"""
