"""Watching a running query: progress and settings go into its model, and the model into the history.

It imports `model`, `doctor` and `export`, and runs in the driver, in the thread of the query's hooks or of a reader.
Start with `watched.py`. Weak spot: under Spark Connect the history is written only at the end.
"""
