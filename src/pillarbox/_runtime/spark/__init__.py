"""The Spark runtime, which runs a program as one streaming or batch DataFrame plan.

`tasks`, `homes` and `worker` run in executors, `rows` on both sides, everything else in the driver. Start with
`runtime.py`, then `plan/plan.py` and `starting/start.py`. Weak spot: the runtime uses private names of Spark, which any
version may change. `session` contains them all, and tests run on all supported versions.
"""
