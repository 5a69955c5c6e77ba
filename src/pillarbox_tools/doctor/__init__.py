"""The doctor: rules that examine a machine and a query. A finding is a message with the problem and its remedy.

Imports `model` alone and no Spark; `watching` collects the facts. Start with `rules.py`, then `facts.py`. Weak spot:
the rules' limits are estimates, to be corrected by experience.
"""
