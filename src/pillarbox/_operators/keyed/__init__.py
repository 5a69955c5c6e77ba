"""Operators of keyed streams: process, reduce, folds of a field, deduplicate.

Imports `frame` and `functions`. Start with `process.py`: most programs are made of it. State and timers are those of
`_state`. Weak spot: `deduplicate.py` has a fast path of its own for whole runs, beside the usual one.
"""
