"""Homes: processes that keep a state partition's tasks between epochs, independently of Spark's workers.

Start with `relay.py` (the worker's side), `home.py`, and `wire.py` (their messages). `starter.py` forks and ends homes
by the rules in `table.py`. Weak spot: Spark does not know these processes, so they must detect the executor's end
themselves.
"""
