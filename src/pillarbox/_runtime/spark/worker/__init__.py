"""Code that only runs in the executors' Python workers.

Start with `task_host.py` and `source_host.py`. `processor.py` and `position.py` are loaded without importing pillarbox.
Weak spot: Spark owns a worker's main thread, so a worker only learns of a query's end by a signal (`closing.py`).
"""
