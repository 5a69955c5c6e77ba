"""One query as plain JSON data: plan, epochs, failures, and conclusions from them.

Imports no Spark, only the core below the runtimes. Start with ``query_model.py``, which the driver feeds. Weak spot:
the model lacks data that Spark does not report, for example about an epoch that is still running.
"""
