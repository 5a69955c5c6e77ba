"""Homes: executor processes that hold the tasks of one state partition, whichever worker Spark uses.

Imports `tasks`. Start with `relay.py`, the worker's side; `home.py` is the other end, and `wire.py` defines their
messages. `starter.py` forks and ends homes by the rules of `table.py`, and `starter_connection.py` is a worker's
connection to it. `sockets.py` has names and secrets; `worker_environment.py` reproduces a worker's environment in a
home. Weak spot: Spark does not know these processes, so they detect the executor's end themselves.
"""
