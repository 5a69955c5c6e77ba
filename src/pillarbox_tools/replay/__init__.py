"""Replays: one task of an epoch runs again from its recording, or two versions of a program do.

Start with `rerun.py`; `replay.py` runs one program, and `trial.py` compares two. A replay takes one process, and
neither Spark nor Java. Weak spot: a program that takes something from outside may do something else when it is
replayed; such calls are only named (`outside.py`).
"""
