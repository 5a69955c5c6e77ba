"""Accesses the user's Spark session: its version, settings, files and queries.

Start with `session.py`, the interface of classic sessions and Spark Connect. `spark_names.py` and `java.py` contain
Spark's private names. Weak spot: any version of Spark may change a private name, or add a setting that changes the
meaning of a checkpoint.
"""
