"""The environment of a program: its settings, its sources, and its execution.

Imports `streams`, `checks` and lower layers. Start with `environment.py`, then `settings.py`. Weak spot: several
modules check separately that all streams belong to one Spark session.
"""
