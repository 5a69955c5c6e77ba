"""Access to the user's Spark session: versions, settings, files, and starting queries.

Start with `session.py`, the interface of two classes for classic sessions and Spark Connect. `spark_names.py` and
`java.py` contain Spark's private names. Weak spot: any version of Spark may change a private name, or add a setting
that changes the meaning of a checkpoint.
"""
