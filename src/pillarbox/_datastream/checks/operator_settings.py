"""Settings of one operator: its parallelism, and whether it is chained."""

from __future__ import annotations

from pillarbox._errors import ProgramError, shorten
from pillarbox._graph import (
    ChainingStrategy,
    CollectionSource,
    OperatorTransformation,
    SourceTransformation,
    Transformation,
)

__all__ = ["check_parallelism", "set_chaining", "set_parallelism"]


def check_parallelism(parallelism: object) -> int:
    """Return a number of subtasks.

    Raises:
        ProgramError: it is not a whole number from 1.
    """
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise ProgramError(f"parallelism is a whole number from 1, not {shorten(parallelism)}")
    return parallelism


def set_parallelism(step: Transformation, parallelism: int) -> None:
    """Set the number of subtasks of an operator.

    Raises:
        ProgramError: it is not a whole number from 1, or the step is no operator.
    """
    check_parallelism(parallelism)
    if isinstance(step, CollectionSource) and parallelism == 1:
        return  # it always has one
    if isinstance(step, SourceTransformation):
        raise ProgramError(
            f"set_parallelism({parallelism}): the parallelism of the source {step.name!r} is the number of partitions"
            " that it is read in: repartition the DataFrame, or put rebalance() after the source"
        )
    _operator(step, f"set_parallelism({parallelism})").parallelism = parallelism


def set_chaining(step: Transformation, chaining: ChainingStrategy, method: str) -> None:
    """Set whether an operator is chained.

    Raises:
        ProgramError: the step is no operator.
    """
    _operator(step, f"{method}()").chaining = chaining


def _operator(step: Transformation, what: str) -> OperatorTransformation:
    if not isinstance(step, OperatorTransformation):
        raise ProgramError(f"{what} belongs to an operator; {step.name!r} is none: call it after map(...) or the like")
    return step
