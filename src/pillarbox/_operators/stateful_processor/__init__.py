"""Operators that run Spark's stateful Python code: ``StatefulProcessor``, and functions with a ``GroupState``.

Start with `operator.py`. At the end of the micro-batch, the processor is called once per key with the rows, then for
expired timers. Weak spot: many of Spark's rules are undocumented, so only a comparison with Spark in a test detects
violations.
"""
