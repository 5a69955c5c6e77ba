"""From a program to one DataFrame plan, and what a plan and its progress tell.

Imports `settings`, `rows` and `worker`. Start with `plan.py`: sources, levels, outputs. `analyzed_plan.py` reads Spark's
own plans, of a classic session only. Weak spot: Spark may plan one program twice, and nobody says which plan will run
(`program_facts.py`).
"""
