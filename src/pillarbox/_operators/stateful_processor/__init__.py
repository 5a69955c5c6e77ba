"""Spark's own stateful Python programs as operators: ``StatefulProcessor``, and functions with a ``GroupState``.

Start with `operator.py`: all rows of a key in a micro-batch are one call, at the barrier; expired timers follow. States
are pillarbox's; `values.py` makes of a value what Spark's state store would give back. Weak spot: the rules are Spark's
and written down nowhere, so what holds is what the differential test compares.
"""
