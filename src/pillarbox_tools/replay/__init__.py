"""Replays one task of an epoch from its recording, and compares two versions of a program.

Start with `rerun.py`; `replay.py` runs one program, and `comparison.py` compares two: `versions.py` gives each its own
modules, and `values.py` compares. A replay needs one process, without Spark and Java. It makes no calls (`calls.py`).
Weak spot: a program with other external inputs, such as a file, may behave differently in a replay.
"""
