"""Records a task of an epoch, in the driver: the epoch runs again on a copy of its checkpoint, without output.

Imports the core alone. Start with `record.py`, then `target.py`. The recorded task sends its input to the driver
instead of running (`recorded.py`). Weak spot: the copy has the state of all levels, and the session must be a classic
one.
"""
