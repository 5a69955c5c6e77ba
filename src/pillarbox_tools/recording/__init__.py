"""Recording a task of an epoch, in the driver: the epoch runs again on a copy of its checkpoint, and writes nowhere.

It imports the core alone. Start with `record.py`, then `target.py`; `recording.py` has the format. Spark reads the
sources again between the offsets of the epoch, and earlier levels run from their state, on a copy that the core makes
(`checkpoint/copy.py`). The task itself sends its input to the driver instead of running (`recorded.py`). Weak spot: the
state of all levels is copied, not only of the earlier ones, and the session has to be a classic one.
"""
