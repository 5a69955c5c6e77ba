"""The simulation: a user's program, or one of pillarbox's own tests, under many schedules with faults in them.

Start with ``simulate`` (what a test calls), then ``run`` (one program under one seed) and ``cluster`` (workers that
are lost). It imports the layers below ``testing``, and no Spark. Weak spot: limits of the task runtime, its event loops
and readers are replaced by name while a run lasts, so simulate in one thread at a time.
"""
