"""Base classes of user functions, as in PyFlink. Operators also accept plain functions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import Generic, In, Key, KeyOut, Out, T, V
from pillarbox._operators.functions.calls import CallContext
from pillarbox._operators.functions.contexts import RuntimeContext, TimeDomain, TimerService
from pillarbox._operators.functions.output_tag import OutputTag


class Function:
    """Base class of functions. ``open`` and ``close`` are called once per task.

    With a batch DataFrame, a task ends with its partition, but a function without ``close`` stays open for the worker's
    next partitions. In async operators and in ``process`` on a keyed stream, ``open`` and ``close`` may be ``async
    def``.

    Attributes:
        uses_processing_time: whether the function sets processing-time timers. If so, a streaming query runs epochs
            even without new data. (Flink's tasks always run.) If None, pillarbox searches the function's code, and the
            functions that it calls, for such timers. The search does not find calls through ``getattr()``.
    """

    uses_processing_time: bool | None = None

    def open(self, runtime_context: RuntimeContext, /) -> Awaitable[None] | None:
        """Declare states and open connections. Called before the first record."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release the resources of ``open``."""
        return None


def has_close(function: object) -> bool:
    return isinstance(function, Function) and type(function).close is not Function.close


class KeySelector(Function, ABC, Generic[In, Out]):
    """Extracts a record's key.

    Example:
        >>> class Length(KeySelector[str, int]):
        ...     def get_key(self, word):
        ...         return len(word)
        >>> env.from_collection(["to", "not"]).key_by(Length()).reduce(max).execute_and_collect()
        ['to', 'not']
    """

    @abstractmethod
    def get_key(self, value: In, /) -> Out:
        """Return the record's key. Its hash must be the same in all processes."""


class Partitioner(Function, ABC, Generic[Key]):
    """Chooses the subtask for a key, for ``DataStream.partition_custom``.

    Example:
        >>> class ByLength(Partitioner[str]):
        ...     def partition(self, key, num_partitions):
        ...         return len(key) % num_partitions
        >>> env.from_collection(["to", "be"]).partition_custom(ByLength(), str).execute_and_collect()
        ['to', 'be']
    """

    @abstractmethod
    def partition(self, key: Key, num_partitions: int, /) -> int:
        """Return the index of a key's subtask, less than ``num_partitions``. A key must always get the same index."""


class MapFunction(Function, ABC, Generic[In, Out]):
    """Maps each record to one result.

    Example:
        >>> class Length(MapFunction[str, int]):
        ...     def map(self, word):
        ...         return len(word)
        >>> env.from_collection(["to", "not"]).map(Length()).execute_and_collect()
        [2, 3]
    """

    @abstractmethod
    def map(self, value: In, /) -> Out:
        """Return the result."""


class FlatMapFunction(Function, ABC, Generic[In, Out]):
    """Maps each record to any number of results.

    Example:
        >>> class Words(FlatMapFunction[str, str]):
        ...     def flat_map(self, line):
        ...         yield from line.split()
        >>> env.from_collection(["to be"]).flat_map(Words()).execute_and_collect()
        ['to', 'be']
    """

    @abstractmethod
    def flat_map(self, value: In, /) -> Iterable[Out] | None:
        """Return or ``yield`` the record's results, or return None."""


class FilterFunction(Function, ABC, Generic[In]):
    """Keeps or drops records.

    Example:
        >>> class Large(FilterFunction[int]):
        ...     def filter(self, amount):
        ...         return amount > 100
        >>> env.from_collection([5, 500]).filter(Large()).execute_and_collect()
        [500]
    """

    @abstractmethod
    def filter(self, value: In, /) -> bool:
        """Return True to keep the record."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Combines two records into one record of the same type.

    Example:
        >>> class Larger(ReduceFunction[int]):
        ...     def reduce(self, a, b):
        ...         return max(a, b)
        >>> env.from_collection([3, 8, 5]).key_by(bool).reduce(Larger()).execute_and_collect()
        [3, 8, 8]
    """

    @abstractmethod
    def reduce(self, value1: T, value2: T, /) -> T:
        """Combine the key's result so far, initially its first record, with another record."""


SideOutput: TypeAlias = tuple[OutputTag[Any], Any]

# The results of a keyed function, which may be an ``async def`` that yields or returns them.
Results: TypeAlias = (
    Iterable[T | SideOutput] | AsyncIterable[T | SideOutput] | Awaitable[Iterable[T | SideOutput] | None] | None
)


class RecordContext(ABC):
    """The context of the current record, with side outputs."""

    @abstractmethod
    def timestamp(self) -> int | Any:
        """Return the record's event time (Unix time in ms), or None if it has no event time."""

    @abstractmethod
    def output(self, tag: OutputTag[V], value: V) -> None:
        """Emit a value to a side output, with the event time of the current record or timer."""


class ProcessFunction(Function, ABC, Generic[In, Out]):
    """Maps each record to any number of results and side outputs, without key, state or timers.

    Example:
        >>> REFUND = OutputTag[int]("refund")
        >>> class Split(ProcessFunction[int, int]):
        ...     def process_element(self, amount, ctx):
        ...         if amount < 0:
        ...             yield REFUND, -amount
        ...         else:
        ...             yield amount
        >>> with harness_for(Split()) as harness:
        ...     harness.push_all([5, -7, 9])
        ...     harness.get_output(), harness.get_side_output(REFUND)
        ([5, 9], [7])
    """

    class Context(RecordContext):
        """The context of the current record."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the timer service, which has the current times. Only keyed streams have timers."""

    @abstractmethod
    def process_element(self, value: In, ctx: ProcessFunction.Context, /) -> Iterable[Out | SideOutput] | None:
        """Process a record. Return an iterable of results or None, or ``yield`` the results.

        A result ``(tag, value)`` sends ``value`` to the side output ``tag``. ``ctx`` is valid only during the call.
        """


class KeyedProcessFunction(Function, ABC, Generic[Key, In, Out]):
    """Maps each record to any number of results, with keyed state and timers.

    Example:
        >>> class Silence(KeyedProcessFunction[str, Row, str]):
        ...     '''Reports a sensor that has been silent for a minute.'''
        ...
        ...     def open(self, runtime_context):
        ...         self.last = runtime_context.get_state(ValueStateDescriptor[int]("last"))
        ...
        ...     def process_element(self, reading, ctx):
        ...         self.last.update(ctx.timestamp())
        ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        ...
        ...     def on_timer(self, timestamp, ctx):
        ...         if self.last.value() == timestamp - 60_000:
        ...             yield ctx.get_current_key()
        >>> with harness_for(Silence(), key_by="sensor") as harness:
        ...     harness.push(row(sensor="door"), timestamp=0)
        ...     harness.push(row(sensor="lamp"), timestamp=10_000)
        ...     harness.push(row(sensor="door"), timestamp=50_000)
        ...     harness.push_watermark(80_000)
        ...     harness.get_output()
        ['lamp']
    """

    class Context(ProcessFunction.Context, CallContext, Generic[KeyOut]):
        """The context of the current record and its key."""

        @abstractmethod
        def get_current_key(self) -> KeyOut:
            """Return the current key."""

    class OnTimerContext(Context[KeyOut], Generic[KeyOut]):
        """The context of the current timer and its key. ``timestamp()`` is the timer's time."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return whether the timer fires in event time or in processing time."""

    @abstractmethod
    def process_element(self, value: In, ctx: KeyedProcessFunction.Context[Key], /) -> Results[Out]:
        """Process a record with its key's state. May be an ``async def``.

        Return an iterable of results or None, or ``yield`` the results. A result ``(tag, value)`` sends ``value`` to
        the side output ``tag``. ``ctx`` is valid only during the call.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[Key], /) -> Results[Out]:
        """Process a timer when it fires, with its key's state. May be an ``async def``.

        Return results as in ``process_element``. The results of an event-time timer have its ``timestamp`` (Unix time
        in ms); the results of a processing-time timer have no event time. ``ctx`` is valid only during the call.
        """
        return None


def check_call(function: Any, names: Sequence[str], what: str) -> None:
    """Raise ProgramError if a function has the wrong number of parameters.

    Args:
        what: the beginning of the message, such as ``"map() got f, which"``.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise ProgramError(
            f"{what} takes {signature}: {error}. It is called with ({', '.join(names)}): declare these"
            " parameters, and return or yield results"
        ) from None


def check_plain(function: Any, method: str, *, asked_by: str, many: bool = False) -> None:
    """Raise ProgramError if a function is an ``async def`` or a generator function.

    Args:
        method: the method to check, if ``function`` is an object.
        asked_by: the method that received the function, such as ``"map()"``, for the message.
        many: whether a generator function is allowed.
    """
    called = getattr(function, method, function)
    while isinstance(called, partial):
        called = called.func
    if not (inspect.isfunction(called) or inspect.ismethod(called)):
        called = getattr(type(called), "__call__", called)  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ProgramError(
            f"{asked_by} got {shorten(function)}, whose {getattr(called, '__name__', method)} is an async def, which"
            " would never be awaited: use map_async() or AsyncDataStream, or write a plain def"
        )
    if not many and inspect.isgeneratorfunction(called):
        raise ProgramError(
            f"{asked_by} got {shorten(function)}, whose {getattr(called, '__name__', method)} yields, so it"
            " returns a generator instead of a result: return the result, or use flat_map() for several results"
        )


def check_interface_plain(implementation: Any, interface: type, *, asked_by: str) -> None:
    """Raise ProgramError if an object, or a class, implements a public method of ``interface`` as an ``async def``."""
    for kind in interface.__mro__:
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                check_plain(implementation, name, asked_by=asked_by, many=True)
