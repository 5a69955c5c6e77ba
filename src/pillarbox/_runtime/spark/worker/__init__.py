"""All that runs in an executor's Python workers; `homes` has the rest. Nothing here runs in the driver.

Imports `rows`, `homes`, and `checkpoint/description.py` for the layout. Start with `task_host.py` and `source_host.py`,
then `residency.py`. `processor.py` and `position.py` load where pillarbox is not installed. Weak spot: a worker's main
thread belongs to Spark, so the end of a query reaches it by a signal (`closing.py`).
"""
