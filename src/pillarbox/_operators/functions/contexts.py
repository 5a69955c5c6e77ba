"""The objects by which functions reach their task: the runtime context with keyed state, and the timer service."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import Acc, K, T, U, V
from pillarbox._operators.functions.logger import TaskLogger
from pillarbox._operators.functions.metric_group import MetricGroup
from pillarbox._state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.state_descriptor import StateDescriptor

if TYPE_CHECKING:
    from pillarbox._operators.frame.operator import KeyedContext, OperatorContext


class RuntimeContext:
    """The task as a function sees it in ``open()``: its name, its place among the subtasks, and keyed state.

    The ``get_*state`` methods declare a state. They raise ``ProgramError`` for a descriptor of another kind, for a name
    that is declared with another kind already, and on a stream without key.

    Example:
        >>> class Which(MapFunction[str, str]):
        ...     def open(self, runtime_context):
        ...         self.place = runtime_context.get_task_name_with_subtasks()
        ...
        ...     def map(self, word):
        ...         return f"{word} in {self.place}"
        >>> words = env.from_collection(["to"]).key_by(lambda word: word)
        >>> words.map(Which()).name("which").execute_and_collect()
        ['to in which (1/1)']
    """

    def __init__(
        self, context: OperatorContext, keyed: KeyedContext | None = None, own_states: Collection[str] = ()
    ) -> None:
        self._context = context
        self._keyed = keyed
        self._own_states = own_states

    def get_task_name(self) -> str:
        """Return the operator's name."""
        return self._context.name

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this parallel instance, from 0."""
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of parallel instances (0 where only Spark knows: before the first shuffle)."""
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the largest number of parallel instances that there can ever be: the program's max parallelism."""
        return self._context.max_parallelism

    def get_task_name_with_subtasks(self) -> str:
        """Return name, index and number as Flink prints them, counted from 1."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism or '?'})"

    def get_metrics_group(self) -> MetricGroup:
        """Return the group in which the function's metrics are made: counters, meters, distributions, gauges."""
        return MetricGroup(self._context.metrics)

    def get_logger(self, name: str = "pillarbox.functions") -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger whose lines end with the operator, the subtask (counted from 0) and the epoch.

        The same stands in the fields ``operator``, ``subtask`` and ``epoch`` of the log records, for
        formatters.

        Args:
            name: the name of the standard library's logger beneath it, whose handlers and level hold.

        Example:
            >>> class Check(MapFunction[int, int]):
            ...     def open(self, runtime_context):
            ...         self.log = runtime_context.get_logger(__name__)
            ...
            ...     def map(self, amount):
            ...         if amount < 0:
            ...             self.log.warning("a negative amount: %d", amount)  # ... (operator 'check', subtask 0, ...)
            ...         return amount
            >>> env.from_collection([5, 9]).map(Check()).name("check").execute_and_collect()
            [5, 9]
        """
        return TaskLogger(logging.getLogger(name), self._context)

    def get_state(self, state_descriptor: ValueStateDescriptor[V]) -> ValueState[V]:
        """Return the value state that a descriptor declares: one value per key."""
        return self._declared(state_descriptor, "get_state", ValueStateDescriptor)  # type: ignore[no-any-return]

    def get_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return the list state that a descriptor declares: a list per key."""
        return self._declared(state_descriptor, "get_list_state", ListStateDescriptor)  # type: ignore[no-any-return]

    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return the map state that a descriptor declares: a map per key."""
        return self._declared(state_descriptor, "get_map_state", MapStateDescriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[V]) -> ReducingState[V]:
        """Return the reducing state that a descriptor declares: a folded value per key."""
        return self._declared(state_descriptor, "get_reducing_state", ReducingStateDescriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor[T, Acc, U]) -> AggregatingState[T, U]:
        """Return the aggregating state that a descriptor declares: an accumulator per key."""
        return self._declared(state_descriptor, "get_aggregating_state", AggregatingStateDescriptor)  # type: ignore[no-any-return]

    def delete_if_exists(self, name: str) -> None:
        """Delete the state of keys that a checkpoint holds under a name, if the program has no more use for it.

        Without this a checkpoint with a state that the program does not declare is refused. Call it in ``open()``. The
        first epoch rewrites all state of the operator, without that state, and without keys that had nothing else: so
        the call may go once an epoch has been committed; it is of use as long as older checkpoints and savepoints may
        be started from. Spark's ``deleteIfExists``.

        Args:
            name: the name in its descriptor.

        Raises:
            ProgramError: the program declares a state with this name, or has renamed one from it; records are processed
                already; or the stream has no key.

        Example:
            >>> class Count(MapFunction[str, int]):
            ...     def open(self, runtime_context):
            ...         runtime_context.delete_if_exists("first_seen")
            ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
            ...
            ...     def map(self, word):
            ...         self.count.update(self.count.value() + 1)
            ...         return self.count.value()
            >>> env.from_collection(["to", "to"]).key_by(lambda word: word).map(Count()).execute_and_collect()
            [1, 2]
        """
        self._backend_for(name).delete_if_exists(name)

    def _declared(self, descriptor: StateDescriptor, method: str, wanted: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, wanted):
            raise ProgramError(
                f"operator {self._context.name!r}: {method}() takes a {wanted.__name__}, not {shorten(descriptor)}:"
                f" declare the state with {method}({wanted.__name__}(...))"
            )
        return self._keyed_state(descriptor)

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        return self._backend_for(descriptor.name).get_state(descriptor)

    def _backend_for(self, name: str) -> KeyedStateBackend:
        """Return the backend in which a function may have a state with this name."""
        if self._keyed is None:
            raise ProgramError(
                f"operator {self._context.name!r} asks for the keyed state {name!r}, but its stream has"
                " no key: put key_by(...) directly before it (where it has two streams, both need a key), and give"
                " process() a KeyedProcessFunction (KeyedCoProcessFunction, KeyedBroadcastProcessFunction)"
            )
        if name in self._own_states:
            raise ProgramError(
                f"operator {self._context.name!r} keeps a state called {name!r} itself: give yours another name"
            )
        return self._keyed.backend


class TimerService(ABC):
    """Time, and timers of the current key. All times are epoch milliseconds (T1).

    A key has one timer for each time and clock: registering it again changes nothing. Timers are part of the state.

    Example:
        >>> class Remind(KeyedProcessFunction[str, str, tuple[str, int]]):
        ...     def process_element(self, task, ctx):
        ...         now = ctx.timer_service().current_processing_time()
        ...         ctx.timer_service().register_processing_time_timer(now + 60_000)
        ...
        ...     def on_timer(self, timestamp, ctx):
        ...         yield ctx.get_current_key(), timestamp
        >>> with harness_for(Remind(), key_by=lambda task: task, processing_time=1_000) as harness:
        ...     harness.push("tea")
        ...     harness.set_processing_time(70_000)
        ...     harness.get_output()
        [('tea', 61000)]
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall clock's time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the operator's event-time clock: -2**63 before the first watermark."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer: ``on_timer`` is called once, when the watermark reaches ``timestamp``.

        Args:
            timestamp: epoch milliseconds. A timer that the watermark has passed already fires with the next watermark.

        Raises:
            ProgramError: the stream has no key.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the event-time timer of the current key at ``timestamp`` (epoch ms), if there is one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer: ``on_timer`` is called once, when the wall clock has passed ``timestamp``.

        Args:
            timestamp: epoch milliseconds. A timer that is past already fires soon.

        Raises:
            ProgramError: the stream has no key.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the processing-time timer of the current key at ``timestamp`` (epoch ms), if there is one."""
