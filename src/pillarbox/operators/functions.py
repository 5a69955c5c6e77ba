"""What a user implements: functions, with PyFlink's names; and the contexts that functions are given.

Wherever a function is asked for, a plain function or lambda does as well.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._unpickle import make
from pillarbox.errors import ProgramError, shorten
from pillarbox.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from pillarbox.operators.operator import OperatorContext

__all__ = [
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimeDomain",
    "TimerService",
    "check_plain",
]


class OutputTag:
    """Names a side output. ``yield tag, value`` in a process function, or ``ctx.output(tag, value)``, sends to it."""

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise ProgramError(f"an OutputTag's id is a non-empty string, not {shorten(tag_id)}")
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"

    def __reduce__(self) -> Any:
        return make, ("OutputTag", self.tag_id)  # all that it is compared by


class TimeDomain(Enum):
    """Which clock a timer follows."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return make, ("TimeDomain", self.value)


class RuntimeContext:
    """What a function may know and ask of the task that runs it."""

    def __init__(self, context: OperatorContext, *, keyed: bool = False) -> None:
        self._context = context
        # An operator without key may stand at the head of a keyed vertex, and finds its state there.
        self._backend = context.backend if keyed else None

    def get_task_name(self) -> str:
        """Return the operator's name."""
        return self._context.name

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this parallel instance, from 0."""
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of parallel instances (0 where only Spark knows: before the first shuffle)."""
        return self._context.parallelism

    def get_task_name_with_subtasks(self) -> str:
        """Return name, index and number as Flink prints them, counted from 1."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism or '?'})"

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Return the keyed value state of a descriptor."""
        return self._declared(descriptor, "get_state", ValueStateDescriptor)  # type: ignore[no-any-return]

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Return the keyed list state of a descriptor."""
        return self._declared(descriptor, "get_list_state", ListStateDescriptor)  # type: ignore[no-any-return]

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Return the keyed map state of a descriptor."""
        return self._declared(descriptor, "get_map_state", MapStateDescriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Return the keyed reducing state of a descriptor."""
        return self._declared(descriptor, "get_reducing_state", ReducingStateDescriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Return the keyed aggregating state of a descriptor."""
        return self._declared(descriptor, "get_aggregating_state", AggregatingStateDescriptor)  # type: ignore[no-any-return]

    def _declared(self, descriptor: StateDescriptor, method: str, wanted: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, wanted):
            raise ProgramError(
                f"operator {self._context.name!r}: {method}() takes a {wanted.__name__}, not {shorten(descriptor)}:"
                f" declare the state with {method}({wanted.__name__}(...))"
            )
        return self._keyed(descriptor)

    def _keyed(self, descriptor: StateDescriptor) -> Any:
        backend = self._backend
        if backend is None:
            raise ProgramError(
                f"operator {self._context.name!r} asks for the keyed state {descriptor.name!r}, but its stream has"
                " no key: put key_by(...) directly before it, and give process() a KeyedProcessFunction"
            )
        return backend.get_state(descriptor)


class Function:
    """Base class of functions: ``open`` and ``close`` run once for as long as a task lives in its worker.

    Both may be ``async def`` in functions of async operators only.

    Attributes:
        uses_processing_time: (functions with timers) whether it sets processing-time timers, for which a streaming
            query runs epochs also when there is no data. None: that is looked up in its code and in that of the helpers
            that it reaches. To be declared in the class where the code does not show it, as with ``getattr()``, or
            shows too much. (Flink, whose tasks always run, has no such thing.)
    """

    uses_processing_time: bool | None = None

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:
        """Declare states, open connections. Called before the first record."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release what ``open`` took."""
        return None


class KeySelector(Function, ABC):
    """Gives a record its key."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key of a record."""


class MapFunction(Function, ABC):
    """One record in, one out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the record to emit."""


class FlatMapFunction(Function, ABC):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return the records to emit."""


class FilterFunction(Function, ABC):
    """Keeps or drops records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Tell whether to keep a record."""


class ReduceFunction(Function, ABC):
    """Folds two records into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return both records folded into one."""


class TimerService(ABC):
    """Time, and timers of the current key. All times are epoch milliseconds (T1)."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall clock's time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the operator's event-time clock: -2**63 before the first watermark."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once when the watermark reaches ``timestamp``."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Remove such a timer; nothing happens when there is none."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once when the wall clock has passed ``timestamp``."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Remove such a timer; nothing happens when there is none."""


class ProcessFunction(Function, ABC):
    """One record in, any number out, side outputs; without key, state or timers."""

    class Context(ABC):
        """The record at hand."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time, or None."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the clocks; timers need a keyed stream."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Send a value to a side output."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Handle a record; give (or ``yield``) what to emit, or nothing."""


class KeyedProcessFunction(Function, ABC):
    """One record in, any number out, with keyed state and timers."""

    class Context(ProcessFunction.Context):
        """The record at hand."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the record's key."""

    class OnTimerContext(Context):
        """The timer at hand: ``timestamp()`` is its time."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the clock that the timer followed."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Handle a record; give (or ``yield``) what to emit, or nothing."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer of the current key; give (or ``yield``) what to emit, or nothing."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Handles the records of two keyed streams, with keyed state and timers that both share."""

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Handle a record of the first stream; return (or ``yield``) what to emit, or nothing."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Handle a record of the second stream; return (or ``yield``) what to emit, or nothing."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer of the current key; return (or ``yield``) what to emit, or nothing."""
        return None


def check_plain(function: Any, method: str, *, asked_by: str, many: bool = False) -> None:
    """Refuse a function whose calls give no results, but coroutines or generators, as far as it can be seen.

    Args:
        function: the user's function or object.
        method: the name of the object's method that is called.
        asked_by: what it was given to, for the message: ``"map()"``.
        many: whether it gives any number of results, so that a generator is right.

    Raises:
        ProgramError: it is an ``async def``, or a generator where one result is asked for.
    """
    called = getattr(function, method, function)
    while isinstance(called, partial):
        called = called.func
    if not (inspect.isfunction(called) or inspect.ismethod(called)):
        called = getattr(type(called), "__call__", called)  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ProgramError(
            f"{asked_by} got {shorten(function)}, whose {getattr(called, '__name__', method)} is an async def: nobody"
            " would wait for it; use map_async() or AsyncDataStream for what has to wait, or write a plain def"
        )
    if not many and inspect.isgeneratorfunction(called):
        raise ProgramError(
            f"{asked_by} got {shorten(function)}, whose {getattr(called, '__name__', method)} yields: it would give a"
            " generator, not a result; return the result, or use flat_map() for any number of results"
        )
