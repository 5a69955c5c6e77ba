"""Homes: processes that keep a state partition's tasks between epochs, whichever workers Spark uses.

Start with `relay.py` (the worker's side), `home.py`, and `wire.py` (their messages). The starter, `starter.py`, forks
and ends homes according to the rules in `table.py`. Weak spot: Spark does not know these processes, so they must detect
themselves that the executor has ended.
"""
