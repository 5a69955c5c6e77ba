"""The Spark runtime: a program as one streaming or batch DataFrame plan.

`worker` and `homes` run in executors; all else runs in the driver. Start with `runtime.py`, then `plan/plan.py` and
`starting/start.py`. `facts.py` names Spark's settings and files. Weak spot: Spark's private names, which each version
may change; tests run them on all versions that are supported.
"""
