"""Window functions and their contexts, with PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from pillarbox._generics import Generic, In, Key, Out, V, WindowOut, WindowT
from pillarbox._operators.functions.basic import Function, OutputTag, SideOutput
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


class KeyedStateStore(ABC):
    """A window function's access to its states."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[V], /) -> ValueState[V]:
        """Return a value state."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[V], /) -> ListState[V]:
        """Return a list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[Any, V], /) -> MapState[Any, V]:
        """Return a map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[V], /) -> ReducingState[V]:
        """Return a reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, V], /) -> AggregatingState[Any, V]:
        """Return an aggregating state."""


class WindowContext(ABC, Generic[WindowOut]):
    """A window function's access to its window and to clocks. All times are Unix times in ms."""

    @abstractmethod
    def window(self) -> WindowOut:
        """Return the window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall-clock time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the operator's watermark, initially -2**63."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return the store for states of this key and window. They remain until ``clear`` removes them.

        Raises:
            ProgramError: the windows may merge.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return the store for states that all windows of this key share. They are never removed automatically."""

    @abstractmethod
    def output(self, tag: OutputTag[V], value: V, /) -> None:
        """Emit a value to a side output, with the window's largest timestamp."""


class WindowFunction(Function, ABC, Generic[In, Out, Key, WindowT]):
    """Maps the elements of a key's window to any number of results.

    Example:
        >>> class Largest(WindowFunction):
        ...     def apply(self, key, window, inputs):
        ...         yield key, window.id, max(inputs)
        >>> words = env.from_collection(["to", "or", "not"]).key_by(len)
        >>> words.count_window(2).apply(Largest()).execute_and_collect()
        [(2, 0, 'to')]
    """

    @abstractmethod
    def apply(self, key: Key, window: WindowT, inputs: Iterable[In], /) -> Iterable[Out | SideOutput] | None:
        """Process a window that fires. Return or ``yield`` results, or return None.

        Args:
            inputs: the elements in arrival order or, after ``reduce`` or ``aggregate``, the single result.
        """


class AllWindowFunction(Function, ABC, Generic[In, Out, WindowT]):
    """Maps the elements of a non-keyed stream's window to any number of results.

    Example:
        >>> class Largest(AllWindowFunction):
        ...     def apply(self, window, inputs):
        ...         yield window.id, max(inputs)
        >>> env.from_collection([1, 5]).count_window_all(2).apply(Largest()).execute_and_collect()
        [(0, 5)]
    """

    @abstractmethod
    def apply(self, window: WindowT, inputs: Iterable[In], /) -> Iterable[Out | SideOutput] | None:
        """Process a window that fires, as in :meth:`WindowFunction.apply`."""


class ProcessWindowFunction(Function, ABC, Generic[In, Out, Key, WindowT]):
    """Maps the elements of a key's window to any number of results, with state and clocks.

    Example:
        >>> class Numbered(ProcessWindowFunction):
        ...     def process(self, key, context, elements):
        ...         windows = context.global_state().get_state(ValueStateDescriptor("windows"))
        ...         windows.update((windows.value() or 0) + 1)
        ...         yield windows.value(), elements
        >>> words = env.from_collection(["to", "be", "or", "so"]).key_by(len)
        >>> words.count_window(2).process(Numbered()).execute_and_collect()
        [(1, ('to', 'be')), (2, ('or', 'so'))]
    """

    class Context(WindowContext[WindowOut], Generic[WindowOut]):
        """The context of the current window. Valid only during the call."""

    @abstractmethod
    def process(
        self, key: Key, context: ProcessWindowFunction.Context[Any], elements: Iterable[In], /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a window that fires. Return or ``yield`` results, or return None.

        A result ``(tag, value)`` sends ``value`` to the side output ``tag``.

        Args:
            elements: the elements in arrival order or, after ``reduce`` or ``aggregate``, the single result.
        """

    def clear(self, context: ProcessWindowFunction.Context[Any], /) -> None:
        """Remove the states in ``context.window_state()`` when the window is removed."""


class ProcessAllWindowFunction(Function, ABC, Generic[In, Out, WindowT]):
    """Maps the elements of a non-keyed stream's window to any number of results, with state and clocks.

    Example:
        >>> class Numbered(ProcessAllWindowFunction):
        ...     def process(self, context, elements):
        ...         yield context.window().id, elements
        >>> env.from_collection([1, 5]).count_window_all(2).process(Numbered()).execute_and_collect()
        [(0, (1, 5))]
    """

    class Context(WindowContext[WindowOut], Generic[WindowOut]):
        """The context of the current window. Valid only during the call."""

    @abstractmethod
    def process(
        self, context: ProcessAllWindowFunction.Context[Any], elements: Iterable[In], /
    ) -> Iterable[Out | SideOutput] | None:
        """Process a window that fires, as in :meth:`ProcessWindowFunction.process`."""

    def clear(self, context: ProcessAllWindowFunction.Context[Any], /) -> None:
        """Remove the states in ``context.window_state()`` when the window is removed."""
