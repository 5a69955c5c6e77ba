"""Checks which vertices of a program may have operator state."""

from __future__ import annotations

from functools import partial
from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.frame.captured import uncaptured
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.functions.checkpointed import CheckpointedFunction, no_operator_state, no_undo
from pillarbox._task.vertex import ChainNode, Vertex


def carries_on(vertex: Vertex) -> bool:
    carries = False
    for node in vertex.nodes:
        _check_operator_state(node, vertex)
        if node.factory.stateful:
            if vertex.is_source:
                raise ProgramError(
                    f"operator {node.name!r}: on_barrier='carry' needs state, which exists only after a shuffle: call"
                    " key_by(...) or rebalance() before the operator, or use on_barrier='drain'"
                )
            carries = True
    return carries


def _check_operator_state(node: ChainNode, vertex: Vertex) -> None:
    make = uncaptured(node.factory.make)
    if isinstance(make, partial) and isinstance(make.func, type) and issubclass(make.func, GuardedOperator):
        if isinstance(_function_of(uncaptured(make.keywords["make"])), CheckpointedFunction):
            raise ProgramError(no_undo(node.name))
    elif isinstance(_function_of(make), CheckpointedFunction):
        if vertex.is_source:
            raise ProgramError(no_operator_state(node.name))
        if not (isinstance(make.func, type) and issubclass(make.func, FunctionOperator)):
            raise ProgramError(
                f"operator {node.name!r} calls its function in another thread, so it cannot have operator state"
                " (CheckpointedFunction): move the state to a separate map() or process()"
            )


def _function_of(make: Any) -> Any:
    if not isinstance(make, partial):
        return None
    return make.keywords.get("function", getattr(make.keywords.get("program"), "function", None))
