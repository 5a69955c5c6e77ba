"""Adds a running query's progress and settings to its model, and writes the model to the history.

Imports `model`, `doctor` and `export`. Runs in the driver, in the thread of the query's hooks or of a reader. Start
with `watched.py`. Weak spot: under Spark Connect, the history is written only at the query's end, and is lost if the
driver dies.
"""
