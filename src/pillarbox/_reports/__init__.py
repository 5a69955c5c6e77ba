"""Reports of a query: metrics of its tasks and operators, its plan, and its failures.

Start with `metrics.py`. `progress.py` reads the tasks' reports from the query's progress in Spark. Weak spot: a task's
report is a list by position, so a reader needs the writer's version.
"""
