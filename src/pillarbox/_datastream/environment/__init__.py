"""The environment of a program: its settings, its sources, and its execution.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `environment.py`, then `settings.py`. Weak
spot: an environment belongs to a session, and checks it in several places.
"""
