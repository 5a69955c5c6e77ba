"""Homes: executor processes that hold the tasks of one state partition, whichever worker Spark uses.

Imports `tasks`. Start with `relay.py`, the worker's side; `home.py` is the other end, and `wire.py` defines their
messages. `starter.py` forks and ends homes by the rules of `table.py`; `keeper.py` is the workers' connection to it and
starts it. `sockets.py` has names and secrets; `surroundings.py` reproduces the calling worker's environment in a home.
Weak spot: Spark does not know these processes, so they detect the executor's end themselves.
"""
