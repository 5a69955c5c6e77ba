"""One query as plain data that is written and read as JSON: plan, epochs, failures, and conclusions from them.

Start with ``query_model.py``: the driver feeds it, and the dashboard, the exporters, the bundle and the doctor read it.
It imports no Spark, only the core below the runtimes. Weak spot: it lacks everything that Spark does not report, such
as an epoch that is still running.
"""
