"""The simulation: a program under many schedules with faults.

Start with ``simulate`` (called by tests), then ``run`` (one program under one seed) and ``cluster`` (the faults).
Imports the layers below ``testing``, and no Spark. Weak spot: limits of the task runtime, its event loops and readers
are patched by name during a run, so simulate in one thread at a time.
"""
