"""Replays one task of an epoch from its recording, and compares two versions of a program.

Start with `rerun.py`, then `replay.py` and `comparison.py`. A replay runs in one process, without Spark or Java, and
calls no services (`calls.py`). Weak spot: if functions have other inputs, such as files, a replay may differ from the
recorded run.
"""
