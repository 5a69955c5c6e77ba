"""A query as it runs: its progress, its settings and its stages go into the model, and the model into the history.

It imports `model`, `doctor` and `export`. All of it runs in the driver, in the thread of a query's hooks, or in
one that wants to know something of it. Start with `watched.py`.
Weak spot: Spark has no event for an epoch that begins, so running stages are known only to those who ask.
"""
