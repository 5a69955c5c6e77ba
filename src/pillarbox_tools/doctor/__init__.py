"""The doctor: rules that examine a machine and a query, and report problems with remedies.

Imports only `model`, and no Spark; `watching` collects the facts. Start with `rules.py`, then `facts.py`. Weak spot:
the limits are estimates, so a rule may report a harmless situation.
"""
