"""A query as it runs: its progress and its settings go into the model, and the model into the history.

It imports `model`, `doctor` and `export`. All of it runs in the driver, in the thread of a query's hooks, or in
one that wants to know something of it. Start with `watched.py`.
Weak spot: under Spark Connect the history is written only at the end.
"""
