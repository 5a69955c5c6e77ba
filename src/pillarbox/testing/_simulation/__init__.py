"""The simulation: a program under many schedules with faults.

Imports the layers below ``testing``, and no Spark. Start with ``simulate``, then ``run`` and ``cluster`` (the faults).
Weak spot: limits of the task runtime are patched by name during a run, so simulate in one thread at a time.
"""
