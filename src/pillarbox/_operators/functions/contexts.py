"""The runtime context with keyed state, and the timer service."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import Enum
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
from pillarbox._unpickle import make

if TYPE_CHECKING:
    from pillarbox._operators.frame.operator import KeyedContext, OperatorContext


class RuntimeContext:
    """A function's access to its task: name, subtask, metrics and keyed state.

    The ``get_*state`` methods declare a state. They raise ``ProgramError`` if the descriptor is for another kind of
    state, another kind of state has the same name, or the stream has no key.

    Example:
        >>> class Tag(MapFunction[str, str]):
        ...     def open(self, runtime_context):
        ...         self.task = runtime_context.get_task_name_with_subtasks()
        ...
        ...     def map(self, word):
        ...         return f"{word} in {self.task}"
        >>> env.from_collection(["to"]).key_by(str).map(Tag()).name("tag").execute_and_collect()
        ['to in tag (1/1)']
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
        """Return the index of this subtask, from 0."""
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of subtasks, or 0 upstream of the first shuffle, because Spark chooses the number there."""
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the program's max parallelism."""
        return self._context.max_parallelism

    def get_task_name_with_subtasks(self) -> str:
        """Return the operator's name, the subtask's number (from 1) and the number of subtasks."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism or '?'})"

    def get_metrics_group(self) -> MetricGroup:
        """Return the group that creates the function's metrics."""
        return MetricGroup(self._context.metrics)

    def get_logger(self, name: str = "pillarbox.functions") -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger that adds the operator, the subtask (from 0) and the epoch to each message and log record.

        Args:
            name: the name of the standard-library logger that receives the messages.

        Example:
            >>> class Check(MapFunction[int, int]):
            ...     def open(self, runtime_context):
            ...         self.log = runtime_context.get_logger(__name__)
            ...
            ...     def map(self, amount):
            ...         self.log.debug("amount %d", amount)  # amount 5 (operator 'check', subtask 0, ...)
            ...         return amount
            >>> env.from_collection([5]).map(Check()).name("check").execute_and_collect()
            [5]
        """
        return TaskLogger(logging.getLogger(name), self._context)

    def get_state(self, state_descriptor: ValueStateDescriptor[V]) -> ValueState[V]:
        """Declare a state with one value per key."""
        return self._declared(state_descriptor, "get_state", ValueStateDescriptor)  # type: ignore[no-any-return]

    def get_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Declare a state with a list per key."""
        return self._declared(state_descriptor, "get_list_state", ListStateDescriptor)  # type: ignore[no-any-return]

    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Declare a state with a map per key."""
        return self._declared(state_descriptor, "get_map_state", MapStateDescriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[V]) -> ReducingState[V]:
        """Declare a state with one value per key. A reduce function adds values to it."""
        return self._declared(state_descriptor, "get_reducing_state", ReducingStateDescriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor[T, Acc, U]) -> AggregatingState[T, U]:
        """Declare a state with an accumulator per key. An aggregate function adds values to it."""
        return self._declared(state_descriptor, "get_aggregating_state", AggregatingStateDescriptor)  # type: ignore[no-any-return]

    def delete_if_exists(self, name: str) -> None:
        """Delete a keyed state that the checkpoint contains but no function declares (Spark's ``deleteIfExists``).

        Call this method in ``open()``. Without the call, pillarbox refuses such a checkpoint. The first epoch removes
        the state, and removes keys without other state. Keep the call while the program may start from an older
        checkpoint or savepoint.

        Raises:
            ProgramError: the program declares a state with this name, or has renamed such a state; or the task has
                already processed records; or the stream has no key.
        """
        self._backend_for(name).delete_if_exists(name)

    def _declared(self, descriptor: StateDescriptor, method: str, kind: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, kind):
            raise ProgramError(
                f"operator {self._context.name!r}: {method}() takes a {kind.__name__}, not {shorten(descriptor)}:"
                f" declare the state with {method}({kind.__name__}(...))"
            )
        return self._keyed_state(descriptor)

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        return self._backend_for(descriptor.name).get_state(descriptor)

    def _backend_for(self, name: str) -> KeyedStateBackend:
        if self._keyed is None:
            raise ProgramError(
                f"operator {self._context.name!r} uses the keyed state {name!r} on a stream without keys: call"
                " key_by(...) directly before the operator (on both streams, if it has two), and pass a"
                " KeyedProcessFunction, KeyedCoProcessFunction or KeyedBroadcastProcessFunction to process()"
            )
        if name in self._own_states:
            raise ProgramError(f"operator {self._context.name!r} has an internal state {name!r}: rename your state")
        return self._keyed.backend


class TimerService(ABC):
    """The clocks, and the current key's timers. All times are Unix times in ms.

    A key has at most one timer per timestamp and clock, so registering a timer again has no effect. Timers are part of
    the state. Without a key, registering a timer raises ``ProgramError``.

    Example:
        >>> class Remind(KeyedProcessFunction[str, str, tuple[str, int]]):
        ...     def process_element(self, task, ctx):
        ...         now = ctx.timer_service().current_processing_time()
        ...         ctx.timer_service().register_processing_time_timer(now + 60_000)
        ...
        ...     def on_timer(self, timestamp, ctx):
        ...         yield ctx.get_current_key(), timestamp
        >>> with harness_for(Remind(), key_by=str, processing_time=1_000) as harness:
        ...     harness.push("tea")
        ...     harness.set_processing_time(70_000)
        ...     harness.get_output()
        [('tea', 61000)]
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall-clock time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the operator's watermark, initially -2**63."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once when the watermark reaches ``timestamp``.

        If the watermark has already reached it, the timer fires with the next watermark.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the current key's event-time timer, if it exists."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once when the wall clock has passed ``timestamp``. A timer in the past fires soon."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the current key's processing-time timer, if it exists."""


class TimeDomain(Enum):
    """The clock of a timer."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return make, ("TimeDomain", self.value)
