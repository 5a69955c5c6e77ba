"""Recordings: the input of one task in one epoch, with its state and its program, and how they are run again.

Start with `recording.py`, then `rerun.py`; `replay.py` and `trial.py` run one program and compare two, and `mask.py`
replaces values. Nothing here knows Spark: `_runtime/spark/recording` makes recordings, and a replay takes one process,
without Java. Weak spot: a program that takes something from outside may do something else when it is replayed; such
calls are only named (`outside.py`).
"""
