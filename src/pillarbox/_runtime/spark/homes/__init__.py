"""Homes: processes of an executor in which the tasks of one state partition live, whichever worker Spark uses.

Imports `tasks`. Start with `relay.py`, the worker's side; `home.py` is the other end. `starter.py` is the one process
of an executor that forks homes and ends them, `keeper.py` how others talk to it. `wire.py` has the messages,
`sockets.py` says who may connect, `surroundings.py` makes a home look like the worker that calls. Weak spot: Spark does
not know of these processes, so they have to notice by themselves that their executor has ended.
"""
