"""Operators that run Spark's stateful Python code: ``StatefulProcessor``, and functions with a ``GroupState``.

Start with `operator.py`. Weak spot: many of Spark's rules are undocumented, so only a comparison with Spark in a test
detects violations.
"""
