"""Operators, one per file, and the functions that users implement.

`functions` and `frame` are at the bottom; `tests/test_house.py` defines the order of the other packages. Start with
`frame/operator.py`, then `stateless/map.py`. An operator handles whole runs of records, in the mailbox thread. Weak
spot: windows have four operators, each fast for one kind of window, whose results tests compare.
"""
