"""Code that runs only in the executors' Python workers.

Start with `task_host.py` and `source_host.py`. `processor.py` and `position.py` load without pillarbox. Weak spot:
Spark owns a worker's main thread, so the end of a query reaches it by a signal (`closing.py`).
"""
