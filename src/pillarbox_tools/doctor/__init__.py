"""The doctor: rules that examine a machine and a query. A finding is a message with a problem and its remedy.

Imports `model` alone and no Spark; `watching` collects the facts. Start with `rules.py`, then `facts.py`. Weak spot:
the rules' limits are estimates, so a rule may report a harmless situation.
"""
