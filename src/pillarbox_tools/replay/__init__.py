"""Replays: one task of an epoch runs again from its recording, or two versions of a program do.

Start with `rerun.py`; `replay.py` runs one program, and `trial.py` compares two: `versions.py` gives each its own
modules, and `values.py` compares. A replay takes one process, and neither Spark nor Java. It makes no calls
(`calls.py`). Weak spot: a program that takes something else from outside, such as a file, may do something else when it
is replayed; such calls are only named (`outside.py`).
"""
