"""Feeds a running query's progress and settings into its model, and writes the model to the history.

Imports `model`, `doctor` and `export`. Runs in the driver, in the thread of the query's hooks or of a reader. Start
with `watched.py`. Weak spot: under Spark Connect, the history is only written at the query's end, and lost if the
driver dies.
"""
