"""What lies in the state store: chunks of entries, the head that proves which is the newest, and large collections.

Imports `keys` and `types`; not `heap`. Start with `head.py`, then `chunk.py`; docs/checkpoint-format.md describes the
bytes. Formats only gain additions. Weak spot: a chunk that was read is checked in two places, by itself (`chunk.py`)
and against its neighbours (`checks.py`).
"""
