"""One query as data: its plan, its epochs, its failures, and what follows from them. It knows no Spark.

Start with ``query_model.py``: the driver feeds it, and the dashboard, the exporters, the bundle and the doctor read it.
It may import everything below the runtimes. All that it holds is plain data, which is written and read as JSON.
Weak spot: what Spark does not report, such as an epoch that is still running, is not in it.
"""
