"""The settings of one operator: name, uid, parallelism and chaining."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._errors import ProgramError, check_count, check_text
from pillarbox._graph.transformations import (
    ChainingStrategy,
    CollectionSource,
    KeyByTransformation,
    OperatorTransformation,
    SourceTransformation,
    Transformation,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class OperatorSettings:
    """Settings of the operator behind a stream or sink.

    Methods raise ``ProgramError`` for invalid settings, and if the stream has no operator.
    """

    def __init__(self, step: Transformation) -> None:
        self._step = step

    def name(self, name: str) -> Self:
        """Set the name of this operator or sink in plans, metrics and errors.

        Example:
            >>> _ = env.from_collection([1]).map(str).name("as text").print()
            >>> "as text" in str(env.get_execution_graph())
            True
        """
        if isinstance(self._step, KeyByTransformation):
            raise ProgramError(f"name({name!r}) is for operators, but key_by() is not one: name the next operator")
        check_text(name, "a name")
        self._step.name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the uid of this operator's or sink's state. It must be unique in the program.

        The default uid depends on the operator's position in the program. If you set a uid, the operator keeps its
        state when other operators are added or removed.

        Example:
            >>> totals = env.from_collection([3, 4]).key_by(bool).sum().uid("totals")
            >>> totals.execute_and_collect()
            [3, 7]
        """
        step = self._step
        if not isinstance(step, OperatorTransformation):
            raise ProgramError(
                f"uid({uid!r}) is for operators, but {step.name!r} is not one: call it after map(...), for example"
            )
        check_text(uid, "a uid")
        step.uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of this operator or sink, at most the max parallelism.

        Between operators of different parallelism, an unpartitioned stream is rebalanced. By default, a sink has the
        parallelism of the operator before it, and operators before the first shuffle run in the source's partitions. A
        checkpoint keeps the number from its query's first start.

        Example:
            >>> totals = env.set_parallelism(4).from_collection([3, 4]).key_by(int).sum()
            >>> sorted(totals.map(int).set_parallelism(1).execute_and_collect())
            [3, 4]
        """
        check_count(parallelism, "parallelism")
        step = self._step
        if isinstance(step, CollectionSource) and parallelism == 1:
            return self
        if isinstance(step, SourceTransformation):
            raise ProgramError(
                f"set_parallelism({parallelism}): the parallelism of the source {step.name!r} is the number of its"
                " partitions: repartition the DataFrame, or call rebalance() after the source"
            )
        self._operator(f"set_parallelism({parallelism})").parallelism = parallelism
        return self

    def disable_chaining(self) -> Self:
        """Run this operator or sink in its own tasks.

        This adds a shuffle before and after the operator. Each record stays in the subtask with the same index. Metrics
        then show how busy the operator itself is.

        Example:
            >>> _ = env.from_collection([1]).map(str).map(len).disable_chaining().print()
            >>> len(env.get_execution_graph().levels)
            3
        """
        self._operator("disable_chaining()").chaining = ChainingStrategy.NEVER
        return self

    def _operator(self, setting: str) -> OperatorTransformation:
        if not isinstance(self._step, OperatorTransformation):
            raise ProgramError(
                f"{setting} is for operators, but {self._step.name!r} is not one: call it after map(...), for example"
            )
        return self._step
