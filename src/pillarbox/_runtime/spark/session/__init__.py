"""The user's session: what Spark is and can, its settings, how a query is started, and where checkpoints lie.

Imports nothing else of `_runtime/spark`. Start with `session.py`: classic sessions and Spark Connect are two classes
with one interface. `spark_names.py` and `java.py` hold Spark's private names. Weak spot: each version of Spark may
change one of these names, or add a setting that changes what a checkpoint means.
"""
