"""The doctor: rules that look at a machine and at a query, and say in one message what is wrong and what to do.

Start with `rules.py`, which lists them: each is a function of facts, and says so where it does not know them.
`facts.py` holds what the rules ask for. It imports `model` alone, and knows no Spark: `watching` finds the facts.
Weak spot: a limit in a rule is a number that experience has to correct.
"""
