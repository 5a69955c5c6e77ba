"""Simulation: runs a program under many schedules with faults.

Imports the layers below ``testing``, and no Spark. Start with ``simulate``, then ``run`` and ``cluster`` (the faults).
Weak spot: a run patches limits of the task runtime for the whole process, so only one simulation can run at a time.
"""
