"""One query as plain JSON data: plan, epochs, failures, and conclusions from them.

Imports no Spark, only the core below the runtimes. Start with ``query_model.py``: the driver feeds it, and dashboard,
exporters, bundle and doctor read it. Weak spot: it lacks data that Spark does not report, such as an epoch that is
still running.
"""
