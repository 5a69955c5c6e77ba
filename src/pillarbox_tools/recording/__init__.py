"""Records a task of an epoch, in the driver. The epoch runs again on a copy of its checkpoint, without output.

Imports the core alone. Start with `record.py`, then `target.py`. The recorded task sends its input to the driver
instead of running (`recorded.py`). Weak spot: the copy contains the state of all levels, so recording one task may copy
much more than its state.
"""
