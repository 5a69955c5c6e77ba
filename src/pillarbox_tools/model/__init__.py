"""Describes a query (plan, epochs, failures) as plain JSON data, and draws conclusions.

Imports only the layers of the core below the runtimes. Start with ``query_model.py``. Weak spot: the model lacks data
that Spark does not report, such as data about a running epoch.
"""
