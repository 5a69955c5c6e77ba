"""The settings of one operator: its name and uid, its parallelism, and whether it is chained."""

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
    """The settings of a step of the program, as streams and sinks share them: most apply to operators alone.

    Args:
        step: what makes the records of the stream, or takes them.
    """

    def __init__(self, step: Transformation) -> None:
        self._step = step

    def name(self, name: str) -> Self:
        """Name the sink, or the operator that makes this stream, for people: in plans, metrics and errors.

        Raises:
            ProgramError: it is not a non-empty string; the stream is keyed, and no operator makes it.

        Example:
            >>> _ = env.from_collection([1]).map(str).name("as text").print()
            >>> "as text" in str(env.get_execution_graph())
            True
        """
        if isinstance(self._step, KeyByTransformation):
            raise ProgramError(f"name({name!r}) belongs to an operator, and key_by() is none: call it before or behind")
        check_text(name, "a name")
        self._step.name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the uid that the state of the sink, or of the operator that makes this stream, is stored under.

        Without one it is derived from the operator's place in the program. A uid lets the program change around it.

        Args:
            uid: unique in the program, and kept when the program changes.

        Raises:
            ProgramError: it is not a non-empty string, or no operator makes this stream.

        Example:
            >>> totals = env.from_collection([3, 4]).key_by(lambda n: "all").reduce(lambda a, b: a + b).uid("totals")
            >>> totals.execute_and_collect()
            [3, 7]
        """
        step = self._step
        if not isinstance(step, OperatorTransformation):
            raise ProgramError(f"uid({uid!r}) belongs to an operator; {step.name!r} is none")
        check_text(uid, "a uid")
        step.uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the sink, or of the operator that makes this stream.

        Where it differs from the previous operator's, and no method partitions the stream between, that is rebalanced;
        so is the stream after this operator, whose successors have the program's. (Sinks stay with the operator
        before them.) Between a source and the first shuffle operators run in the partitions of the source,
        unless they have a parallelism of their own. A checkpoint keeps the number.

        Args:
            parallelism: the number, from 1 to the max parallelism (``env.set_max_parallelism``).

        Raises:
            ProgramError: it is not a whole number from 1, or no operator makes this stream; (when the program is run)
                it is above the max parallelism.

        Example:
            >>> _ = env.set_parallelism(4)
            >>> totals = env.from_collection([3, 4]).key_by(lambda n: n).sum()
            >>> sorted(totals.map(lambda n: n).set_parallelism(1).execute_and_collect())
            [3, 4]
        """
        check_count(parallelism, "parallelism")
        step = self._step
        if isinstance(step, CollectionSource) and parallelism == 1:
            return self  # it always has one
        if isinstance(step, SourceTransformation):
            raise ProgramError(
                f"set_parallelism({parallelism}): the parallelism of the source {step.name!r} is the number of"
                " partitions that it is read in: repartition the DataFrame, or put rebalance() after the source"
            )
        self._operator(f"set_parallelism({parallelism})").parallelism = parallelism
        return self

    def disable_chaining(self) -> Self:
        """Let the sink, or the operator that makes this stream, run in tasks of its own, apart from those around it.

        That costs a level of the Spark plan on each side: its records are sent through a shuffle, each to the subtask
        with the same index. It separates their busy times in the metrics, for one.

        Raises:
            ProgramError: no operator makes this stream.

        Example:
            >>> _ = env.from_collection([1]).map(str).map(len).disable_chaining().print()
            >>> print(env.get_execution_graph())
            Program 'program': parallelism 1, max parallelism 2
            Level 0 (sources)
              [0] collection -> map: str
                    --forward--> [1]
            Level 1
              [1] map: len  uid=map-3
                    --forward--> [2]
            Level 2
              [2] print  uid=sink-4
        """
        self._operator("disable_chaining()").chaining = ChainingStrategy.NEVER
        return self

    def _operator(self, setting: str) -> OperatorTransformation:
        if not isinstance(self._step, OperatorTransformation):
            raise ProgramError(
                f"{setting} belongs to an operator; {self._step.name!r} is none: call it after map(...) or the like"
            )
        return self._step
