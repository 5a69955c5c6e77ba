"""Homes: processes of an executor in which the tasks of one state partition live, whichever worker Spark uses.

``relay.py`` is the worker's side and the place to start reading, ``home.py`` the other end. ``starter.py`` is the one
process of an executor that forks homes and ends them; ``keeper.py`` is how others talk to it. ``wire.py`` carries
messages, ``sockets.py`` says who may connect, ``surroundings.py`` makes a home look like the worker that calls.
"""
