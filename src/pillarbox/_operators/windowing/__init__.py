"""Window operators: a general operator, and faster operators for tumbling, overlapping and session windows that fold.

Imports `api`, `frame`, `functions` and `dead_letters`. Start with `api/assigner.py`, then `base_operator.py` and
`operator.py`, the general operator; the others do the same for some windows with less work, and `shared_operator.py` is
the base of tumbling windows and panes. Weak spot: four operators with one meaning; model tests compare their results.
"""
