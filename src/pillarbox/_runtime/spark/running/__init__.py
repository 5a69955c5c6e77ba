"""Running queries: progress, ending between two epochs, and requests from the command line.

Start with `query.py`, then `ending.py`. `observing.py` has the public methods that the tools implement. Weak spot: a
query that was started with the writer's own `start()` is not watched until another method needs it.
"""
