"""The steps of a DataFrame's plan as Spark has analyzed it, so with views resolved: of a classic session."""

from __future__ import annotations

from typing import Any

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
    pending: list[Any] = [df._jdf.queryExecution().analyzed()]
    while pending:
        step = pending.pop()
        steps.append(step)
        children = step.children()
        pending += [children.apply(index) for index in reversed(range(children.size()))]
    return steps


def aliases_of(query: Any) -> str:
    """Return the aliases in the plan of a DataFrame, or of a writer, as text; views are resolved."""
    from pyspark.sql import DataFrame
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter as ClassicWriter

    df: Any = query._df if isinstance(query, ClassicWriter) else query
    if not isinstance(df, ClassicDataFrame):  # Spark Connect: only the server knows what views stand for
        if not isinstance(df, DataFrame):
            from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame

            df = ConnectDataFrame(df._write_stream._child, df._session)
        return _explained(df)
    # Not the plan's own text: a setting cuts that.
    return "\n".join(step.simpleString(1) for step in plan_steps(df) if step.nodeName() == "SubqueryAlias")


def _explained(df: Any) -> str:
    """Return the plan of a DataFrame of Spark Connect as text, whole, however little the session shows of plans."""
    spark = df.sparkSession
    is_whole = spark.conf.get(_PLAN_LENGTH, _WHOLE) == _WHOLE
    with session_settings(spark, {} if is_whole else {_PLAN_LENGTH: _WHOLE}):
        plans = str(df._explain_string(mode="extended"))
    return plans.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
