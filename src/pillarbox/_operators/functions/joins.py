"""Functions of joins. Names and meanings are Flink's, from its Java API; PyFlink has no joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from pillarbox._generics import Generic, In1, In2, Out, V
from pillarbox._operators.functions.basic import Function, OutputTag, SideOutput


class JoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Joins each pair of records into one result.

    Example:
        >>> class Pair(JoinFunction[tuple[str, int], tuple[str, int], tuple[str, int, int]]):
        ...     def join(self, first, second):
        ...         return first[0], first[1], second[1]
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: 0)
        >>> one = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(at)
        >>> two = env.from_collection([("a", 3)]).assign_timestamps_and_watermarks(at)
        >>> joined = one.join(two).where(lambda event: event[0]).equal_to(lambda event: event[0])
        >>> joined.window(TumblingEventTimeWindows.of("1 second")).apply(Pair()).execute_and_collect()
        [('a', 1, 3)]
    """

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Out:
        """Return the pair's result."""


class FlatJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Joins each pair of records into any number of results; otherwise as :class:`JoinFunction`."""

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Iterable[Out] | None:
        """Return (or ``yield``) the pair's results; None stands for no results."""


class CoGroupFunction(Function, ABC, Generic[In1, In2, Out]):
    """Handles both streams' records of a key and window, also if one stream has no records.

    Example:
        >>> class Counts(CoGroupFunction[str, str, tuple[int, int]]):
        ...     def co_group(self, firsts, seconds):
        ...         yield len(firsts), len(seconds)
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda word: 0)
        >>> one = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
        >>> two = env.from_collection(["to", "or"]).assign_timestamps_and_watermarks(at)
        >>> grouped = one.co_group(two).where(str).equal_to(str).window(TumblingEventTimeWindows.of("1 second"))
        >>> sorted(grouped.apply(Counts()).execute_and_collect())
        [(0, 1), (1, 0), (1, 1)]
    """

    @abstractmethod
    def co_group(self, firsts: Sequence[In1], seconds: Sequence[In2], /) -> Iterable[Out] | None:
        """Return (or ``yield``) the results; None stands for no results.

        Args:
            firsts: the first stream's records, in order of arrival.
            seconds: the second stream's records.
        """


class ProcessJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Handles each pair of records of two keyed streams with close event times: see ``interval_join``.

    Example:
        >>> class Delay(ProcessJoinFunction[str, str, int]):
        ...     def process_element(self, left, right, ctx):
        ...         yield ctx.get_right_timestamp() - ctx.get_left_timestamp()
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
        >>> sent = env.from_collection([("a", 1_000)]).assign_timestamps_and_watermarks(at)
        >>> answered = env.from_collection([("a", 3_500)]).assign_timestamps_and_watermarks(at)
        >>> both = sent.key_by(lambda e: e[0]).interval_join(answered.key_by(lambda e: e[0]))
        >>> both.between("0 seconds", "5 seconds").process(Delay()).execute_and_collect()
        [2500]
    """

    class Context(ABC):
        """The current pair. All times are epoch milliseconds."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the left record's event time."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the right record's event time."""

        @abstractmethod
        def timestamp(self) -> int:
            """Return the event time of the pair and its results: the later of both."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the pair's key."""

        @abstractmethod
        def output(self, tag: OutputTag[V], value: V) -> None:
            """Emit a value to a side output, with the event time of the pair.

            Raises:
                ProgramError: ``tag`` is not an ``OutputTag``.
            """

    @abstractmethod
    def process_element(
        self, left: In1, right: In2, ctx: ProcessJoinFunction.Context, /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a pair.

        Args:
            left: the left stream's record.
            right: the right stream's record.
            ctx: their event times, and the side outputs. Valid during the call only.

        Returns:
            The results, or None; most functions ``yield`` them. ``(tag, value)`` goes to a side output.
        """
