"""A general window operator, and faster operators for tumbling, overlapping (such as sliding) and session windows.

Imports `api`, `frame`, `functions` and `dead_letters`. Start with `api/assigner.py`, `base_operator.py` and
`operator.py`, the general operator. Weak spot: all four operators must give the same results. Model tests compare them.
"""
