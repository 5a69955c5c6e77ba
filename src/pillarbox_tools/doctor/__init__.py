"""The doctor: rules that examine a machine and a query. A finding is a message with the problem and its remedy.

Start with `rules.py`, which lists the rules; each is a function of the facts in `facts.py`. It imports `model` alone
and no Spark; `watching` collects the facts. Weak spot: the rules' limits are estimates, to be corrected by experience.
"""
