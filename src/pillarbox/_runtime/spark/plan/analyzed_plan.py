"""The steps of a DataFrame's plan as Spark has analyzed it, so with views resolved: of a classic session."""

from __future__ import annotations

from typing import Any

from pillarbox._runtime.spark.facts import analyzed_plan, analyzed_text, frame_of, is_classic
from pillarbox._runtime.spark.settings.session import session_settings

__all__ = ["aliases_of", "plan_steps"]

_PLAN_LENGTH = "spark.sql.maxPlanStringLength"
# Spark's default: as long as an array of Java can be.
_WHOLE = str(2**31 - 1 - 15)


def plan_steps(df: Any) -> list[Any]:
    """Return the steps of the plan, as objects of Java, each before those that it reads from, as Spark numbers sources.

    Args:
        df: a classic DataFrame.
    """
    steps: list[Any] = []
    pending: list[Any] = [analyzed_plan(df)]
    while pending:
        step = pending.pop()
        steps.append(step)
        children = step.children()
        pending += [children.apply(index) for index in reversed(range(children.size()))]
    return steps


def aliases_of(query: Any) -> str:
    """Return the aliases in the plan of a DataFrame, or of a writer, as text; views are resolved."""
    df: Any = query if hasattr(type(query), "writeStream") else frame_of(query)
    if not is_classic(df.sparkSession):  # only the server knows what views stand for
        return _explained(df)
    # Not the plan's own text: a setting cuts that.
    return "\n".join(step.simpleString(1) for step in plan_steps(df) if step.nodeName() == "SubqueryAlias")


def _explained(df: Any) -> str:
    """Return the plan of a DataFrame of Spark Connect as text, whole, however little the session shows of plans."""
    spark = df.sparkSession
    is_whole = spark.conf.get(_PLAN_LENGTH, _WHOLE) == _WHOLE
    with session_settings(spark, {} if is_whole else {_PLAN_LENGTH: _WHOLE}):
        return analyzed_text(df)
