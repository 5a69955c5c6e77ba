"""Running queries: their progress, their end between two epochs, and requests from the command line.

Start with `query.py`, then `ending.py`. `observing.py` has the public methods that the tools implement. Weak spot: a
query that was started with its writer's own `start()` is only watched if another method asks for it.
"""
