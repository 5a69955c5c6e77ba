"""Homes: executor processes that hold the tasks of one state partition, whichever worker Spark uses.

Start with `relay.py` (the worker's side), `home.py` and `wire.py` (their messages). `starter.py` forks and ends homes
by the rules of `table.py`. Weak spot: Spark does not know these processes, so they must detect the executor's end
themselves.
"""
