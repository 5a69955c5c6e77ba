"""The user's Spark session: versions, settings, files, and starts of queries.

Start with `session.py`: classic sessions and Spark Connect are two classes with one interface. `spark_names.py` and
`java.py` hold Spark's private names. Weak spot: each version of Spark may change one of these names, or add a setting
that changes the meaning of a checkpoint.
"""
