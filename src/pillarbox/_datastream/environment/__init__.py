"""The environment of a program: its settings, its sources, and its execution.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `environment.py`, then `settings.py`. Weak
spot: all streams of an environment must belong to one Spark session, which several modules check separately.
"""
