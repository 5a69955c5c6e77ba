"""Operators, one per file, and the functions that users implement.

`functions` and `frame` are the lowest layers; `tests/test_house.py` lists the other packages in order. Start with
`frame/operator.py` and `stateless/map.py`. Weak spot: four window operators, each optimized for one kind of window,
must give the same results.
"""
