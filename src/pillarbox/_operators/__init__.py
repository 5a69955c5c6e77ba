"""Operators, one per file, and the functions that users implement.

`functions` and `frame` are the lowest layers; `tests/test_house.py` has the order of the other packages. Start with
`frame/operator.py`, then `stateless/map.py`. Weak spot: there are four window operators, each optimized for one kind of
window, and they must give the same results.
"""
