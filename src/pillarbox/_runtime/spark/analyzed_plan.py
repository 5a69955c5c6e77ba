"""The steps of a DataFrame's plan as Spark has analyzed it, so with views resolved: of a classic session."""

from __future__ import annotations

from typing import Any

__all__ = ["plan_steps"]


def plan_steps(df: Any) -> list[Any]:
    """Return the steps of the plan, as objects of Java, each before those that it reads from, as Spark numbers sources.

    Args:
        df: a classic DataFrame.
    """
    steps: list[Any] = []
    pending: list[Any] = [df._jdf.queryExecution().analyzed()]
    while pending:
        step = pending.pop()
        steps.append(step)
        children = step.children()
        pending += [children.apply(index) for index in reversed(range(children.size()))]
    return steps
