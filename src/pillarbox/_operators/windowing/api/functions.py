"""Window functions and their contexts, with PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from pillarbox._generics import Generic, In, Key, Out, WindowOut, WindowT
from pillarbox._operators.functions.basic import Function, SideOutput
from pillarbox._operators.windowing.api.window_context import WindowContext


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
