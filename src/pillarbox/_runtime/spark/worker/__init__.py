"""Code that only runs in Spark's Python workers.

Start with `task_host.py` and `source_host.py`. `processor.py` and `position.py` load without pillarbox. Weak spot:
Spark controls a worker's main thread, so only a signal can announce a query's end (`closing.py`).
"""
