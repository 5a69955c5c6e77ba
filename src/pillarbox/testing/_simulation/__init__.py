"""Runs a program under many simulated schedules with faults.

Imports the layers below ``testing``, but not Spark. Start with ``simulate``, then ``run`` and ``cluster`` (the faults).
Weak spot: a simulation patches limits of the task runtime for the whole process, so only one can run at a time.
"""
