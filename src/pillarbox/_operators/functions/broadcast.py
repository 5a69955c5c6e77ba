"""Functions for a stream and a broadcast stream, and broadcast state, as in PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

from pillarbox._errors import ProgramError
from pillarbox._generics import Generic, In1, In2, K, Key, KeyOut, Out, V
from pillarbox._operators.functions.basic import Function, RecordContext, Results, SideOutput
from pillarbox._operators.functions.calls import CallContext
from pillarbox._operators.functions.contexts import TimeDomain, TimerService
from pillarbox._state.descriptors import MapState, MapStateDescriptor
from pillarbox._state.state_descriptor import StateDescriptor


class ReadOnlyBroadcastState(Generic[K, V]):
    """A map with data from broadcast records, in insertion order, even after a restart. Each subtask has a copy."""

    def __init__(self, state: MapState[K, V]) -> None:
        self._state = state

    def get(self, key: K) -> V | None:
        """Return the value at ``key``, or None. Do not change the value."""
        return self._state.get(key)

    def contains(self, key: K) -> bool:
        """Return whether ``key`` is present."""
        return self._state.contains(key)

    def items(self) -> ItemsView[K, V]:
        """Return the entries."""
        return self._state.items()

    def keys(self) -> KeysView[K]:
        """Return the keys."""
        return self._state.keys()

    def values(self) -> ValuesView[V]:
        """Return the values."""
        return self._state.values()

    def is_empty(self) -> bool:
        """Return whether the map is empty."""
        return self._state.is_empty()

    def __getitem__(self, key: K) -> V:
        return self._state[key]

    def __contains__(self, key: K) -> bool:
        return self._state.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._state)

    def __setitem__(self, key: K, value: V) -> None:
        self._refuse()

    def __delitem__(self, key: K) -> None:
        self._refuse()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in vars(BroadcastState):
                self._refuse()
            raise AttributeError(name)

    def _refuse(self) -> NoReturn:
        raise ProgramError(
            "broadcast state is read-only here: change it in process_broadcast_element(), which runs in every"
            " subtask. Otherwise subtasks would hold different state"
        )


class BroadcastState(ReadOnlyBroadcastState[K, V], Generic[K, V]):
    """Broadcast state that can be changed, for functions that process broadcast records.

    All subtasks must compute the same state, so it must depend only on the broadcast records. For a large map, an epoch
    stores only the changed entries.
    """

    def put(self, key: K, value: V) -> None:
        """Set the value at ``key``."""
        self._state.put(key, value)

    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set all values of ``dict_value``."""
        self._state.put_all(dict_value)

    def remove(self, key: K) -> None:
        """Remove ``key``, if it exists."""
        self._state.remove(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._state.clear()

    def __setitem__(self, key: K, value: V) -> None:
        self._state.put(key, value)

    def __delitem__(self, key: K) -> None:
        self._state.remove(key)


class _Context(RecordContext):
    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall-clock time (Unix time in ms)."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the smaller of the two inputs' watermarks, initially -2**63."""


class _ReadOnlyContext(_Context):
    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
        """Return a broadcast state, which is read-only, because all subtasks' copies must be equal.

        Raises:
            ProgramError: the stream was broadcast without this descriptor.
        """


class _BroadcastContext(_Context):
    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Return a broadcast state.

        Raises:
            ProgramError: the stream was broadcast without this descriptor.
        """


class BroadcastProcessFunction(Function, ABC, Generic[In1, In2, Out]):
    """Processes a non-keyed stream connected to a broadcast stream.

    Each subtask receives every broadcast record once, and may store it in broadcast state. The relative order of the
    streams' records is undefined. If records must wait for a broadcast record, the function must store them in state.

    Example:
        >>> RULES = MapStateDescriptor[str, int]("rules")
        >>> class Above(BroadcastProcessFunction[tuple[str, int], tuple[str, int], str]):
        ...     def process_element(self, reading, ctx):
        ...         sensor, value = reading
        ...         limit = ctx.get_broadcast_state(RULES).get(sensor)
        ...         if limit is not None and value > limit:
        ...             yield sensor
        ...
        ...     def process_broadcast_element(self, rule, ctx):
        ...         ctx.get_broadcast_state(RULES).put(*rule)
        >>> with harness_for(Above(), broadcast=[RULES]) as harness:
        ...     harness.push2(("door", 10))
        ...     harness.push1(("door", 11))
        ...     harness.push1(("lamp", 11))
        ...     harness.get_output()
        ['door']
    """

    class ReadOnlyContext(_ReadOnlyContext):
        """Context of a record of the non-broadcast stream."""

    class Context(_BroadcastContext):
        """Context of a record of the broadcast stream."""

    @abstractmethod
    def process_element(
        self, value: In1, ctx: BroadcastProcessFunction.ReadOnlyContext, /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a record of the non-broadcast stream, as in ``ProcessFunction.process_element``."""

    @abstractmethod
    def process_broadcast_element(
        self, value: In2, ctx: BroadcastProcessFunction.Context, /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a broadcast record. Every subtask calls this method and emits the results.

        ``ctx`` is valid only during the call.
        """


class KeyedBroadcastProcessFunction(Function, ABC, Generic[Key, In1, In2, Out]):
    """Processes a keyed stream connected to a broadcast stream, with keyed state and timers.

    Example:
        >>> LIMITS = MapStateDescriptor[str, int]("limits")
        >>> class OverLimit(KeyedBroadcastProcessFunction[str, Row, tuple[str, int], str]):
        ...     def open(self, runtime_context):
        ...         self.spent = runtime_context.get_state(ValueStateDescriptor("spent", int, default=0))
        ...
        ...     def process_element(self, payment, ctx):
        ...         self.spent.update(self.spent.value() + payment.amount)
        ...         if self.spent.value() > ctx.get_broadcast_state(LIMITS)["all"]:
        ...             yield ctx.get_current_key()
        ...
        ...     def process_broadcast_element(self, limit, ctx):
        ...         ctx.get_broadcast_state(LIMITS).put(*limit)
        >>> with harness_for(OverLimit(), key_by="card", broadcast=[LIMITS]) as harness:
        ...     harness.push2(("all", 100))
        ...     harness.push1(row(card="c1", amount=80))
        ...     harness.push1(row(card="c1", amount=30))
        ...     harness.get_output()
        ['c1']
    """

    class ReadOnlyContext(_ReadOnlyContext, CallContext, Generic[KeyOut]):
        """Context of a record of the keyed stream, with its key."""

        @abstractmethod
        def get_current_key(self) -> KeyOut:
            """Return the current key."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the clocks and the key's timers."""

    class OnTimerContext(ReadOnlyContext[KeyOut], Generic[KeyOut]):
        """Context of a timer, with its key. ``timestamp()`` is the timer's time."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return whether the timer fires in event time or in processing time."""

    class Context(_BroadcastContext):
        """Context of a record of the broadcast stream, without a key."""

        @abstractmethod
        def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
            """Call a function for each of the subtask's keys that has the given state (Flink's ``applyToKeyedState``).

            The keys are collected before the first call, and their order depends only on the keys.

            Args:
                descriptor: a keyed state that ``open`` has declared.
                function: ``f(key, state)``, which can change the key's states and emit to side outputs, but cannot set
                    timers.

            Example:
                >>> SPENT = ValueStateDescriptor("spent", int, default=0)
                >>> class Report(KeyedBroadcastProcessFunction[str, str, str, tuple[str, int]]):
                ...     def open(self, runtime_context):
                ...         self.spent = runtime_context.get_state(SPENT)
                ...
                ...     def process_element(self, card, ctx):
                ...         self.spent.update(self.spent.value() + 1)
                ...
                ...     def process_broadcast_element(self, request, ctx):
                ...         cards = []
                ...         ctx.apply_to_keyed_state(SPENT, lambda card, spent: cards.append((card, spent.value())))
                ...         yield from cards
                >>> with harness_for(Report(), key_by=str, broadcast=[MapStateDescriptor("unused")]) as harness:
                ...     harness.push1("c1")
                ...     harness.push1("c1")
                ...     harness.push2("report")
                ...     harness.get_output()
                [('c1', 2)]
            """

    @abstractmethod
    def process_element(self, value: In1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext[Key], /) -> Results[Out]:
        """Process a record of the keyed stream, as in ``KeyedProcessFunction.process_element``."""

    @abstractmethod
    def process_broadcast_element(self, value: In2, ctx: KeyedBroadcastProcessFunction.Context, /) -> Results[Out]:
        """Process a broadcast record. Every subtask calls this method and emits the results.

        ``ctx`` gives access to the state of all keys, and is valid only during the call.
        """

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext[Key], /) -> Results[Out]:
        """Process a timer, as in ``KeyedProcessFunction.on_timer``."""
        return None
