"""Operators, one per file, and the functions that users implement.

`functions` and `frame` are at the bottom; `tests/test_house.py` orders the other packages. Start with
`frame/operator.py`, then `stateless/map.py`. Weak spot: there are four window operators, each fast for one kind of
window, which must agree with each other.
"""
