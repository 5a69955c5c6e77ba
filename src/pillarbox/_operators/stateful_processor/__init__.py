"""Spark's stateful Python programs as operators: ``StatefulProcessor``, and functions with a ``GroupState``.

Start with `operator.py`: a key's rows in a micro-batch are one call, at the barrier; expired timers follow. Weak spot:
Spark's rules are undocumented; only the differential test secures them.
"""
