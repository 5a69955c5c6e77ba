"""Operators, one a file, and the functions that users give them.

`functions` and `frame` are at the bottom; `tests/test_house.py` says which of the other packages knows which. Start
with `frame/operator.py`, then `stateless/map.py`. An operator handles whole runs of records, in the mailbox thread.
Weak spot: windows have four operators, each fast for one kind of window, which tests hold to the same results.
"""
