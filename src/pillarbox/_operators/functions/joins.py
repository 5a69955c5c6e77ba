"""Functions for joins, as in Flink's Java API. PyFlink has no joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from pillarbox._generics import Generic, In1, In2, Out, V
from pillarbox._operators.functions.basic import Function, SideOutput
from pillarbox._operators.functions.output_tag import OutputTag


class JoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Joins each pair of records into one result.

    Example:
        >>> class Pair(JoinFunction[str, str, str]):
        ...     def join(self, first, second):
        ...         return f"{first}+{second}"
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(len)
        >>> first = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
        >>> second = env.from_collection(["or"]).assign_timestamps_and_watermarks(at)
        >>> joined = first.join(second).where(len).equal_to(len).window(TumblingEventTimeWindows.of("1 second"))
        >>> joined.apply(Pair()).execute_and_collect()
        ['to+or', 'be+or']
    """

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Out:
        """Return the pair's result."""


class FlatJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Joins each pair of records into any number of results."""

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Iterable[Out] | None:
        """Return or ``yield`` the pair's results, or return None."""


class CoGroupFunction(Function, ABC, Generic[In1, In2, Out]):
    """Processes the records of two streams that have the same key and window. One stream may have no such records.

    Example:
        >>> class Counts(CoGroupFunction[str, str, tuple[int, int]]):
        ...     def co_group(self, firsts, seconds):
        ...         yield len(firsts), len(seconds)
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(len)
        >>> first = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
        >>> second = env.from_collection(["not"]).assign_timestamps_and_watermarks(at)
        >>> grouped = first.co_group(second).where(len).equal_to(len).window(TumblingEventTimeWindows.of("1 second"))
        >>> sorted(grouped.apply(Counts()).execute_and_collect())
        [(0, 1), (2, 0)]
    """

    @abstractmethod
    def co_group(self, firsts: Sequence[In1], seconds: Sequence[In2], /) -> Iterable[Out] | None:
        """Return or ``yield`` results, or return None. Both sequences are in arrival order."""


class ProcessJoinFunction(Function, ABC, Generic[In1, In2, Out]):
    """Processes pairs of records with close event times, from two keyed streams. For ``interval_join``.

    Example:
        >>> class Delay(ProcessJoinFunction[int, int, int]):
        ...     def process_element(self, left, right, ctx):
        ...         yield ctx.get_right_timestamp() - ctx.get_left_timestamp()
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
        >>> sent = env.from_collection([1_000]).assign_timestamps_and_watermarks(at).key_by(bool)
        >>> answered = env.from_collection([3_500]).assign_timestamps_and_watermarks(at).key_by(bool)
        >>> sent.interval_join(answered).between("0 seconds", "5 seconds").process(Delay()).execute_and_collect()
        [2500]
    """

    class Context(ABC):
        """The context of the current pair of records. All times are Unix times in ms."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the left record's event time."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the right record's event time."""

        @abstractmethod
        def timestamp(self) -> int:
            """Return the event time of the pair's results, the later of the two event times."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the pair's key."""

        @abstractmethod
        def output(self, tag: OutputTag[V], value: V) -> None:
            """Emit a value to a side output, with the pair's event time."""

    @abstractmethod
    def process_element(
        self, left: In1, right: In2, ctx: ProcessJoinFunction.Context, /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a pair. Return an iterable of results or None, or ``yield`` the results.

        A result ``(tag, value)`` sends ``value`` to the side output ``tag``. ``ctx`` is valid only during the call.
        """
