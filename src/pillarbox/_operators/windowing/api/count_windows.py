"""Windows that do not depend on time: global windows and count windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox._errors import check_count
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    PurgingTrigger,
    Trigger,
)
from pillarbox._operators.windowing.api.windows import CountWindow, GlobalWindow
from pillarbox._state.descriptors import ValueStateDescriptor
from pillarbox._types.type_information import Types


class GlobalWindows(WindowAssigner):
    """Assigns a key's elements to one endless window, for use with a trigger."""

    window_type: Callable[..., Any] = GlobalWindow

    fires_at_end: bool = False
    """Whether windows without another trigger fire at the end of event time."""

    @staticmethod
    def create() -> GlobalWindows:
        """Return the assigner.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(GlobalWindows.create())
            >>> windows.trigger(CountTrigger.of(2)).reduce(max).execute_and_collect()
            [1, 3]
        """
        return GlobalWindows()

    @staticmethod
    def create_with_end_of_stream_trigger() -> GlobalWindows:
        """Return an assigner of global windows that fire once, at the end of the input.

        For collections and batch DataFrames. A streaming query's input ends only if the query is drained.

        Example:
            >>> words = env.from_collection(["to", "or", "not"]).key_by(len)
            >>> words.window(GlobalWindows.create_with_end_of_stream_trigger()).reduce(max).execute_and_collect()
            ['to', 'not']
        """
        assigner = GlobalWindows()
        assigner.fires_at_end = True
        return assigner

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> list[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: Any = None, /) -> Trigger:
        return PurgingTrigger.of(EventTimeTrigger()) if self.fires_at_end else NeverTrigger()

    def is_event_time(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "GlobalWindows.create_with_end_of_stream_trigger()" if self.fires_at_end else "GlobalWindows()"


def _count(value: int, asked_by: str) -> int:
    check_count(value, asked_by, "an element count of at least 1")
    return value


class CountWindowAssigner(WindowAssigner):
    """Base class of assigners of windows with a fixed number of elements. Counts a key's elements in keyed state."""

    window_type: Callable[..., Any] = CountWindow

    def __init__(self, window_size: int, window_slide: int) -> None:
        name = f"{type(self).__name__}.of()"
        self.size: int = _count(window_size, f"{name}: the size")
        self.slide: int = _count(window_slide, f"{name}: the slide")
        self._counted = ValueStateDescriptor("window-count", Types.LONG())

    def open(self, context: WindowAssigner.WindowAssignerContext, /) -> None:
        context.get_runtime_context().get_state(self._counted)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> Sequence[CountWindow]:
        counted = context.get_runtime_context().get_state(self._counted)
        position: int = counted.value() or 0
        counted.update(position + 1)
        # Window n starts at position n * slide.
        last = position // self.slide
        first = max(0, (position - self.size) // self.slide + 1)
        return [CountWindow(number) for number in range(first, last + 1)]

    def get_default_trigger(self, env: Any = None, /) -> Trigger:
        return PurgingTrigger.of(CountTrigger.of(self.size))

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountWindowAssigner):
    """Assigns a key's elements to adjacent windows of ``window_size`` elements. An incomplete window does not fire."""

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        """Return the assigner. Raises ProgramError unless the size is positive.

        Example:
            >>> numbers = env.from_collection(range(5))
            >>> numbers.window_all(CountTumblingWindowAssigner.of(2)).reduce(max).execute_and_collect()
            [1, 3]
        """
        return CountTumblingWindowAssigner(window_size)

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self.size})"


class CountSlidingWindowAssigner(CountWindowAssigner):
    """Assigns a key's elements to windows of ``window_size`` elements that fire after every ``window_slide`` elements.

    Only full windows fire, as in PyFlink. For smaller windows at the beginning, as in Java, use a global window with
    ``CountTrigger.of(slide)`` and ``CountEvictor.of(size)``.
    """

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return the assigner. Raises ProgramError unless the size and slide are positive.

        Example:
            >>> numbers = env.from_collection(range(5))
            >>> numbers.window_all(CountSlidingWindowAssigner.of(3, 1)).reduce(max).execute_and_collect()
            [2, 3, 4]
        """
        return CountSlidingWindowAssigner(window_size, window_slide)

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self.size}, {self.slide})"


def count_windows(size: int, slide: int) -> CountWindowAssigner:
    _count(size, "count_window(): the size")
    if slide == 0 and slide is not False:
        return CountTumblingWindowAssigner.of(size)
    _count(slide, "count_window(): the slide")
    return CountSlidingWindowAssigner.of(size, slide)
