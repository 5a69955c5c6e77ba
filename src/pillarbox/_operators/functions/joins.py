"""The functions of joins: names and meanings come from Flink's Java API, as PyFlink has none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from pillarbox._generics import Generic, In1, In2, Out, V
from pillarbox._operators.functions.basic import Function, OutputTag, SideOutput


class JoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Turns each pair of records into one result.

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
        """Return the record to emit for a pair."""


class FlatJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Turns each pair of records into any number of results; otherwise as :class:`JoinFunction`."""

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Iterable[Out] | None:
        """Return (or ``yield``) the records to emit for a pair; None stands for none."""


class CoGroupFunction(Function, ABC, Generic[In1, In2, Out]):
    """Handles all records of a key in a window, of both streams together: also where one stream has none.

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
        """Return (or ``yield``) the records to emit; None stands for none.

        Args:
            firsts: the records of the first stream, in the order in which they came.
            seconds: the records of the second stream.
        """


class ProcessJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Handles each pair of records of two keyed streams whose event times are near enough: see ``interval_join``.

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
        """The pair at hand. All times are epoch milliseconds."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the event time of the record of the left stream."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the event time of the record of the right stream."""

        @abstractmethod
        def timestamp(self) -> int:
            """Return the event time of the pair, which its results get: the later of both."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of both."""

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
        """Handle a pair.

        Args:
            left: the record of the left stream.
            right: the record of the right stream.
            ctx: their event times, and the side outputs; valid during the call only.

        Returns:
            The records to emit, or None; most functions ``yield`` them. ``(tag, value)`` goes to a side output.
        """
