"""Operators with state of their own, and the places where there is room for it."""

from __future__ import annotations

from functools import partial
from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.functions.checkpointed import CheckpointedFunction, no_operator_state, no_undo
from pillarbox._task.vertex import ChainNode, Vertex


def carries_on(vertex: Vertex) -> bool:
    """Return whether operators carry something on from one epoch to the next, so that there are epochs without data.

    Raises:
        ProgramError: there is no place for state of operators' own: it is after a shuffle.
    """
    carries = False
    for node in vertex.nodes:
        _check_operator_state(node, vertex)
        if node.factory.stateful:
            if vertex.is_source:
                raise ProgramError(
                    f"operator {node.name!r} carries unfinished requests from one epoch to the next,"
                    " which takes state, and there is none before the first shuffle: put key_by(...) or rebalance()"
                    " before it, or let it drain (on_barrier='drain')"
                )
            carries = True
    return carries


def _check_operator_state(node: ChainNode, vertex: Vertex) -> None:
    """Refuse functions with state of their operator's own where there is no place for it."""
    make = _within(node.factory.make)
    if isinstance(make, partial) and isinstance(make.func, type) and issubclass(make.func, GuardedOperator):
        if isinstance(_function_of(_within(make.keywords["make"])), CheckpointedFunction):
            raise ProgramError(no_undo(node.name))
    elif isinstance(_function_of(make), CheckpointedFunction):
        if vertex.is_source:
            raise ProgramError(no_operator_state(node.name))
        if not (isinstance(make.func, type) and issubclass(make.func, FunctionOperator)):
            raise ProgramError(
                f"operator {node.name!r} calls its function in another thread: it cannot have state of the operator"
                " itself (CheckpointedFunction); keep that in a map() or process() before or after it"
            )


def _within(make: Any) -> Any:
    return make.function if isinstance(make, Captured) else make


def _function_of(make: Any) -> Any:
    """Return the user's function that an operator is made with, by itself or as part of what windows do."""
    if not isinstance(make, partial):
        return None
    return make.keywords.get("function", getattr(make.keywords.get("program"), "function", None))
