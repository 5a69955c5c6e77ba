"""What the user has set: the session, the writer of a query, and the places where checkpoints lie.

Imports `facts.py` alone of `_runtime/spark`. Start with `session.py`. Weak spot: a `DataStreamWriter` has no methods
that return its options (`writer.py`), and each version of Spark may add a setting that changes what a checkpoint means.
"""
