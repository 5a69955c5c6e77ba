"""Python of the user's in the query of a program, besides the program: whether there is any, in the plan or the sink.

Settings that are right for a program's own rows hold for the whole query. So those that are wrong for other rows are
only set where there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.facts import frame_of, python_pattern
from pillarbox._runtime.spark.plan.analyzed_plan import plan_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pillarbox._runtime.spark.settings.writer import Start

__all__ = ["runs_other_python", "without_setting"]

# Steps of Spark's that hand rows to Python, and those of them that a program's plan has; "~" marks those of a stream.
_PYTHON = re.compile(r"Arrow|Pandas|PySpark|Python")
_OURS = re.compile(
    r"~?(\w*MapInArrow (SourceHost|_unchanged)\(|TransformWithState\w+ transformWithStateUDF\(target#\d+L, channel#)"
)


def runs_other_python(start: Start) -> bool:
    """Return whether a query may hand rows to Python functions that are not pillarbox's; True: that is not known."""
    # That of for_each_batch() calls the user's within `without_setting`.
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


@contextmanager
def without_setting(batch: DataFrame, name: str) -> Iterator[None]:
    """Take a setting from the session of a micro-batch meanwhile."""
    conf = batch.sparkSession.conf
    value = conf.getAll.get(name)
    if value is None:
        yield
        return
    conf.unset(name)
    try:
        yield
    finally:
        conf.set(name, value)
