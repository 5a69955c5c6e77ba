"""Describes a query as plain JSON data (plan, epochs, failures), and draws conclusions.

Imports no Spark, only the core below the runtimes. Start with ``query_model.py``, which the driver feeds. Weak spot:
the model lacks data that Spark does not report, such as about a running epoch.
"""
