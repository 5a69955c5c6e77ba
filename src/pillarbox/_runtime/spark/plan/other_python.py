"""Detects Python functions in a query's plan that do not belong to pillarbox."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pillarbox._runtime.spark.session.java import python_pattern
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pillarbox._runtime.spark.session.writer import WriterStart

# Plan nodes that pass rows to Python, and the nodes of a program ("~" marks streaming nodes).
_PYTHON = re.compile(r"Arrow|Pandas|PySpark|Python")
_OURS = re.compile(
    r"~?(\w*MapInArrow (SourceHost|_unchanged)\(|TransformWithState\w+ transformWithStateUDF\(target#\d+L, channel#)"
)


def runs_other_python(start: WriterStart) -> bool:
    # for_each_batch() itself unsets the setting while it calls its function.
    if start.calls_function and not start.function_reads_all:
        return True
    try:
        return _has_other(start)
    except Exception:
        return True


def _has_other(start: WriterStart) -> bool:
    steps = session_of(start.spark).plan_steps(start.dataframe)
    if steps is None:
        return True
    pattern = python_pattern(start.spark)
    for step in steps:
        if _PYTHON.search(step.nodeName()):
            if _OURS.match(step.simpleString(2)) is None:
                return True
        elif step.containsPattern(pattern):
            expressions = step.expressions()
            if any(expressions.apply(index).containsPattern(pattern) for index in range(expressions.size())):
                return True
    return False
