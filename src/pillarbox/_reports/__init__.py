"""Reports of a query: the figures of its tasks and operators, its plan, and its failures.

Start with `metrics.py`. `progress.py` reads the tasks' reports from the progress that Spark has of a query. It imports
the layers up to `_graph`, and knows no Spark. Weak spot: a task's report is a list by position, so a reader needs the
writer's version.
"""
