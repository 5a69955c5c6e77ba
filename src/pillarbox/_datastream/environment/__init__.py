"""Where a program starts: its settings, sources, and running it.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `environment.py`, then `settings.py`. Weak
spot: an environment belongs to a session, and checks it in several places.
"""
