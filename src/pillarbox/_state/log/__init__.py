"""The state log: a task writes each epoch into it, and reads it to be created again, by an upgraded program as well.

Imports all other packages of `_state` except `inspect` and `savepoint`. Start with `state_log.py`: `writer.py` and
`cleaner.py` are called by each epoch, `reader.py` and `evolution.py` by a cold start. Weak spot: `evolution.py`, as
what may change between two programs depends on nearly everything that a program declares.
"""
