"""The keyed state backend: live Python objects, one row for each key, with its states and timers as slots.

Imports `keys`, `types`, the modules of `_state` itself and, of `chunks`, large maps; not `log`. Start with
`backend.py`, then `rows.py`: a table of rows, made twice, in `key_rows.py` and `namespace_rows.py`; `timers.py` and
`timer_queue.py` are the other half of a row. Everything belongs to the mailbox thread. Weak spot: these modules know
each other, as the keyed path takes one look-up for each record and seven framework calls.
"""
