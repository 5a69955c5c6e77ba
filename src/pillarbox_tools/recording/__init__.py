"""Records a task of an epoch, by running the epoch again on a copy of the checkpoint, without output.

Imports only the core. Start with `record.py`, then `target.py`. Weak spot: the whole query's state is copied to record
a single task.
"""
