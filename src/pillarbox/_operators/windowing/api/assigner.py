"""Window assigners, as in Flink. All times are Unix times in ms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import Generic, In, WindowOut
from pillarbox._operators.functions.contexts import RuntimeContext
from pillarbox._operators.windowing.api.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._time.timestamp_assigner import MAX_WATERMARK


class WindowAssigner(ABC, Generic[In, WindowOut]):
    """Assigns elements to windows. State must not be stored in attributes.

    Attributes:
        window_type: the class of the windows, a ``NamedTuple`` whose fields are stored in state.

    Example:
        >>> class Odds(WindowAssigner):
        ...     window_type = CountWindow  # or your own NamedTuple
        ...
        ...     def assign_windows(self, element, timestamp, context):
        ...         return [CountWindow(element % 2)]
        ...
        ...     def get_default_trigger(self):
        ...         return CountTrigger.of(2)
        ...
        ...     def is_event_time(self):
        ...         return False
        >>> env.from_collection(range(5)).window_all(Odds()).reduce(max).execute_and_collect()
        [2, 3]
    """

    class WindowAssignerContext(ABC):
        """An assigner's access to the clock and to state."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the wall-clock time (Unix time in ms)."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Return the context that declares keyed states, which all windows of a key share."""

    window_type: Callable[..., Any] = TimeWindow

    def open(self, context: WindowAssignerContext, /) -> None:
        """Declare states. Called before the first element."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int | None, context: WindowAssignerContext, /) -> Iterable[Any]:
        """Return the element's windows. A window that is returned twice receives the element twice.

        ``timestamp`` is the element's Unix time in ms, or None if unknown.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any, /) -> Trigger:
        """Return the trigger for programs that do not set one. An override may omit ``env``."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether the windows end in event time."""


class MergeCallback(ABC, Generic[In]):
    """Receives an assigner's requests to merge windows."""

    @abstractmethod
    def merge(self, to_be_merged: Iterable[Any], merge_result: Any, /) -> None:
        """Replace windows with a window that covers them."""


_MergeCallback: TypeAlias = MergeCallback


class MergingWindowAssigner(WindowAssigner[In, WindowOut], Generic[In, WindowOut]):
    """An assigner whose windows may merge, such as sessions.

    Example:
        >>> class Growing(MergingWindowAssigner):
        ...     def assign_windows(self, element, timestamp, context):
        ...         return [TimeWindow(timestamp, timestamp + 5_000)]
        ...
        ...     def get_default_trigger(self):
        ...         return EventTimeTrigger.create()
        ...
        ...     def is_event_time(self):
        ...         return True
        ...
        ...     def merge_windows(self, windows, callback):
        ...         if len(windows := sorted(windows)) > 1:
        ...             callback.merge(windows, TimeWindow(windows[0].start, windows[-1].end))
        >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n * 1_000)
        >>> numbers = env.from_collection([1, 2, 9]).assign_timestamps_and_watermarks(at)
        >>> numbers.window_all(Growing()).reduce(lambda a, b: a + b).execute_and_collect()
        [12]
    """

    MergeCallback: TypeAlias = _MergeCallback

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: MergeCallback, /) -> None:
        """Call ``callback.merge`` for each group of windows to merge. ``windows`` are a key's windows."""


class TimedAssigner(WindowAssigner):
    """An assigner of event-time or processing-time windows."""

    @abstractmethod
    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int: ...


def check_assigner(assigner: WindowAssigner) -> None:
    kind: Any = assigner.window_type
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "max_timestamp")):
        raise ProgramError(
            f"{assigner!r}: window_type must be a NamedTuple class with a method max_timestamp(), not {shorten(kind)}"
        )


def is_built_in(assigner: WindowAssigner) -> bool:
    return str(type(assigner).__module__).startswith(__name__.partition(".")[0] + ".")


def assign_function(assigner: WindowAssigner) -> Callable[..., Iterable[Any]]:
    assign = assigner.assign_windows
    if str(type(assigner).assign_windows.__module__).startswith(__name__.partition(".")[0] + "."):
        return assign
    kind: Any = assigner.window_type

    def checked(element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> list[Any]:
        windows = assign(element, timestamp, context)
        if isinstance(windows, kind) or not isinstance(windows, Iterable):
            raise TypeError(f"{assigner!r}.assign_windows() returned {shorten(windows)}: return a list of windows")
        assigned = list(windows)
        for window in assigned:
            if not isinstance(window, kind):
                raise TypeError(
                    f"{assigner!r}.assign_windows() returned {shorten(window)} as a window, but its window_type is"
                    f" {kind.__name__}"
                )
        return assigned

    return checked


class EventTimeAssigner(TimedAssigner):
    """Base class of assigners of event-time windows."""

    def get_default_trigger(self, env: Any = None, /) -> Trigger:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True

    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int:
        if timestamp is None:
            raise ProgramError(
                f"{type(self).__name__} got an element without a timestamp: put"
                " assign_timestamps_and_watermarks(...) before the window, or use processing-time windows"
            )
        if timestamp >= MAX_WATERMARK:
            raise ProgramError(
                f"{type(self).__name__} got an element with the timestamp 2**63 - 1, as count windows and global"
                " windows emit: put assign_timestamps_and_watermarks(...) between the two windows"
            )
        return timestamp


class ProcessingTimeAssigner(TimedAssigner):
    """Base class of assigners of processing-time windows. The wall clock decides an element's window."""

    def get_default_trigger(self, env: Any = None, /) -> Trigger:
        return ProcessingTimeTrigger.create()

    def is_event_time(self) -> bool:
        return False

    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int:
        return context.get_current_processing_time()
