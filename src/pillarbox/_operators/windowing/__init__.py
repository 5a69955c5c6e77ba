"""The operators of windows: any window, and faster ones for tumbling, overlapping and session windows that fold.

Imports `api`, `frame`, `functions` and `dead_letters`. Start with `api/assigner.py`, then `base_operator.py` and
`operator.py`, which does all windows; the others do the same for some windows, with less work: `shared_operator.py` has
what tumbling windows and panes have in common. Weak spot: four operators for one meaning; model tests hold them to the
same results.
"""
