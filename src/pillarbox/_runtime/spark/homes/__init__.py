"""Homes: processes of an executor in which the tasks of one state partition live, whichever worker Spark uses.

Imports `tasks`. Start with `relay.py`, the worker's side; `home.py` is the other end, and `wire.py` has their messages.
`starter.py` is the process that forks homes and ends them, by the rules of `table.py`; `keeper.py` is how workers talk
to it, and start it. `sockets.py` has names and secrets, `surroundings.py` makes a home look like the worker that calls.
Weak spot: Spark does not know of these processes, so they have to notice by themselves that their executor has ended.
"""
