"""A query's plan as Spark has analyzed it, so with views resolved: its steps, their aliases, and Python in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.facts import analyzed_plan, analyzed_text, frame_of, is_classic, python_pattern
from pillarbox._runtime.spark.settings.session_settings import session_settings

if TYPE_CHECKING:
    from pillarbox._runtime.spark.settings.writer import Start

_PLAN_LENGTH = "spark.sql.maxPlanStringLength"
# Spark's default: as long as an array of Java can be.
_WHOLE = str(2**31 - 1 - 15)

# Steps of Spark that hand rows to Python, and which of them a program's plan has; "~" marks the steps of a stream.
_PYTHON = re.compile(r"Arrow|Pandas|PySpark|Python")
_OURS = re.compile(
    r"~?(\w*MapInArrow (SourceHost|_unchanged)\(|TransformWithState\w+ transformWithStateUDF\(target#\d+L, channel#)"
)


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


def runs_other_python(start: Start) -> bool:
    """Return whether a query may hand rows to Python functions that are not pillarbox's; True: that is not known."""
    # The function of for_each_batch() calls the user's within `without_setting`.
    if start.calls_function and not start.function_reads_all:
        return True
    try:
        return _has_other(frame_of(start.writer))
    except Exception:  # such as under Spark Connect, where nobody but the server knows the plan
        return True


def _has_other(df: Any) -> bool:
    pattern = python_pattern(df.sparkSession)
    for step in plan_steps(df):
        if _PYTHON.search(step.nodeName()):
            if _OURS.match(step.simpleString(2)) is None:
                return True
        elif step.containsPattern(pattern):  # in it, or in what it reads from
            expressions = step.expressions()
            if any(expressions.apply(index).containsPattern(pattern) for index in range(expressions.size())):
                return True
    return False
