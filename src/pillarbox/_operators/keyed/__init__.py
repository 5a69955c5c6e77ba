"""Operators of keyed streams: process, reduce, field aggregation, deduplication, event-time order.

Imports `frame` and `functions`; `_state` implements state and timers. Start with `process.py`. Weak spot:
`deduplicate.py` bypasses the state API for speed, so changes to the state backend can break it.
"""
