"""Reports of a query: metrics of its tasks and operators, its plan, and its failures.

Start with `metrics.py`. `progress.py` reads the tasks' reports from the query's progress. Weak spot: a task's report is
a list without field names, so fields can be appended but not removed.
"""
