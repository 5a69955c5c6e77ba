"""Running queries: their progress, their end between two epochs, and requests from the command line.

Start with `query.py`, then `ending.py`. `observing.py` has the public methods that the tools implement. Weak spot: a
query started by its writer's own `start()` is watched only on request.
"""
