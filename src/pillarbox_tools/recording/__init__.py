"""Records a task of an epoch, by running the epoch again on a copy of its checkpoint, without output.

Imports only the core. Start with `record.py`, then `target.py`. The recorded task sends its input to the driver instead
of running (`recorded.py`). Weak spot: to record one task, the whole query's state is copied.
"""
