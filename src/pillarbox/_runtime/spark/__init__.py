"""The Spark runtime, which runs a program as one streaming or batch DataFrame plan.

`tasks`, `homes` and `worker` run in executors, `rows` in both executors and the driver, everything else in the driver.
Start with `runtime.py`, then `plan/plan.py` and `starting/start.py`. Weak spot: the runtime uses Spark's private names,
which any version may change. They are all in `session`, and tests run on all supported versions.
"""
