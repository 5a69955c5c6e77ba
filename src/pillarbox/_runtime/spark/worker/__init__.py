"""All that runs in the Python workers of an executor. Nothing here runs in the driver.

Imports `rows`, `tasks` and `homes`. Start with `task_host.py` and `source_host.py`. `processor.py` and `position.py`
load where pillarbox is not installed. Weak spot: a worker's main thread belongs to Spark, so the end of a query reaches
it by a signal (`closing.py`).
"""
