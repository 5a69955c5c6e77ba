"""Operators of keyed streams: process, reduce, folds of a field, deduplicate, order by time.

Imports `frame` and `functions`. Start with `process.py`: most programs are made of it. `_state` has state and
timers. Weak spot: `deduplicate.py` has a fast path of its own for whole runs, besides the usual one.
"""
