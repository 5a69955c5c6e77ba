"""The simulation: a program under many schedules with faults.

Imports the layers below ``testing``, and no Spark. Start with ``simulate`` (called by tests), then ``run`` (one program
under one seed) and ``cluster`` (the faults). Weak spot: limits of the task runtime are patched by name during a run, so
simulate in one thread at a time.
"""
