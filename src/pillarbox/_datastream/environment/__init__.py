"""The environment of a program: its settings, its sources, and its execution.

Imports `streams`, `checks` and the layers below `_datastream`. Start with `environment.py`, then `settings.py`. Weak
spot: several modules check separately that all streams belong to one Spark session.
"""
