"""What the user has set: the session, how a query is started, and the places where checkpoints lie.

Imports `facts.py` alone of `_runtime/spark`. Start with `session.py`, then `writer.py`: one start of a query. Weak
spot: a `DataStreamWriter` has no methods that return its options, and each version of Spark may add a setting that
changes what a checkpoint means.
"""
