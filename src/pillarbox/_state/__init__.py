"""Keyed state: descriptors, key groups, the heap backend and the state log.

`keys` and `types` are at the bottom, then `heap` and `chunks`, `log`, `inspect`, `savepoint`. Start with
`descriptors.py`, then `heap/backend.py`: keyed state as operators see it. All state belongs to the mailbox thread. Weak
spot: `log` knows `heap`, as a log's entries are rows of the heap.
"""
