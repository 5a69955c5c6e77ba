"""Replays one task of an epoch from its recording, and compares two versions of a program.

Start with `rerun.py`, then `replay.py` and `comparison.py`. A replay needs one process, without Spark and Java, and
makes no calls (`calls.py`). Weak spot: if a program has other inputs, such as a file that it reads, a replay may differ
from the recorded run.
"""
