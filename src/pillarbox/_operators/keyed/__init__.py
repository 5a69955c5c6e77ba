"""Operators of keyed streams: process, reduce, field aggregation, deduplicate, order by event time.

Imports `frame` and `functions`; `_state` implements state and timers. Start with `process.py`. Weak spot:
`deduplicate.py` bypasses the state API to process many records at once, so changes to the state backend can break it.
"""
