"""Spark's own stateful Python programs as operators: ``StatefulProcessor``, and functions with a ``GroupState``.

Start with `operator.py`: all rows of a key in a micro-batch are one call, at the barrier; expired timers follow. States
are pillarbox's; `values.py` converts values as Spark's state store would. Weak spot: Spark's rules are undocumented;
only the differential test secures them.
"""
