"""One query as plain JSON data: plan, epochs, failures, and conclusions from them.

Start with ``query_model.py``: the driver feeds it, and the dashboard, the exporters, the bundle and the doctor read it.
Imports no Spark, only the core below the runtimes. Weak spot: it lacks data that Spark does not report, such as an
epoch that is still running.
"""
