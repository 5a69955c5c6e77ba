"""Recordings: the input of one task in one epoch, with its state and its program, and how they are run again.

Start with `recording.py`, then `replay.py`. Nothing here knows Spark: `_runtime/spark/recording` makes recordings, and
a replay takes one process, without Java. Weak spot: a program that asks the clock, or draws random numbers, may do
something else when it is replayed.
"""
