"""The doctor: rules that find problems in a machine or query, and suggest remedies.

Imports only `model`, and no Spark; `watching` collects the facts. Start with `rules.py`. Weak spot: the limits are
estimates, so a rule may report a harmless situation.
"""
