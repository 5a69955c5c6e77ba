"""Timers of keyed operators, per key and namespace (such as a window): deduplicated, deletable and checkpointed.

The state backend stores timers; this module decides when they fire. Follows Flink's ``InternalTimerServiceImpl``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pillarbox._errors import ProgramError, shorten
from pillarbox._time.clock import ProcessingTimeService, ScheduledTimer
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

VOID_NAMESPACE = None

# Maximum timers that timers may set after the end of the data, and its increase per existing timer.
_LAST = 1_000_000
_LAST_EACH = 100


class InternalTimers(Protocol):
    """The timers of all keys, on one clock (event or processing time)."""

    def __len__(self) -> int: ...

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None: ...

    def delete(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None: ...

    def next_timestamp(self) -> int | None: ...

    def first_of_key(self) -> int | None: ...

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire all timers up to ``limit`` (inclusive), in order, including timers set during this call."""


class InternalProcessingTimers(InternalTimers, Protocol):
    """Processing-time timers. Timers that are overdue when an epoch begins fire after the epoch's records."""

    def begin_epoch(self, now: int) -> None:
        """Begin an epoch. Timers that are due at ``now`` fire in :meth:`fire_overdue`."""

    def next_for_clock(self) -> int | None: ...

    def has_overdue(self) -> bool: ...

    def fire_overdue(self, trigger: Callable[[int, Any], None]) -> None: ...


class KeyContext(Protocol):
    """A timer service's view of a keyed state backend."""

    operator: str
    key: Any

    def create_timers(self, name: str, *, namespaced: bool = False) -> Any:
        """Create the timers for one clock."""
        ...


class Triggerable(Protocol):
    """The operator whose timers fire. During the calls, the timer's key is the current key."""

    def on_event_time(self, timestamp: int, namespace: Any) -> None: ...

    def on_processing_time(self, timestamp: int, namespace: Any) -> None: ...

    def flush(self) -> None:
        """Emit the results of processing-time timers that were due together."""


class InternalTimerService:
    """An operator's timers under one name. Mailbox thread only.

    Args:
        fires: whether processing-time timers can fire. If not, registering a processing-time timer raises.
        may_run_on: whether a firing timer may register further timers without end, as timers of user code may.
    """

    def __init__(
        self,
        name: str,
        keys: KeyContext,
        processing_time_service: ProcessingTimeService,
        triggerable: Triggerable,
        *,
        namespaced: bool = False,
        fires: bool = True,
        may_run_on: bool = False,
    ) -> None:
        self.name = name
        self._keys = keys
        self._fires = fires
        self._may_run_on = may_run_on
        self.current_watermark: int = MIN_TIMESTAMP
        self.triggerable: Triggerable = triggerable
        self._clock = processing_time_service
        self.event_timers: InternalTimers = keys.create_timers(f"{name}/event", namespaced=namespaced)
        self.processing_timers: InternalProcessingTimers = keys.create_timers(
            f"{name}/processing", namespaced=namespaced
        )
        self._scheduled: ScheduledTimer | None = None
        self._scheduled_at: int | None = None

    def let_user_set(self) -> None: ...

    def current_processing_time(self) -> int:
        return self._clock.current_processing_time()

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer of the current key that fires when the watermark reaches ``timestamp`` (Unix time in ms)."""
        self.event_timers.register(timestamp, namespace)

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.event_timers.delete(timestamp, namespace)

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer of the current key that fires when the clock has passed ``timestamp`` (Unix time in ms)."""
        if not self._fires:
            raise ProgramError(
                f"operator {self._keys.operator!r}, key {shorten(self._keys.key)}: a processing-time timer was set,"
                " but the program declares none, so Spark would run no epoch for it: pass process(...,"
                " processing_time=True), or set uses_processing_time = True in the function's class"
            )
        self.processing_timers.register(timestamp, namespace)
        # Only the earliest timer is scheduled.
        if self._scheduled_at is None or timestamp < self._scheduled_at:
            self.schedule()

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.processing_timers.delete(timestamp, namespace)

    def advance_watermark(self, watermark: int) -> None:
        self.current_watermark = watermark
        trigger = self.triggerable.on_event_time
        at_the_end = watermark == MAX_WATERMARK and self._may_run_on
        self.event_timers.fire(watermark, self._limited(trigger) if at_the_end else trigger)

    def _limited(self, trigger: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        count = self.count_last_timers()

        def call(timestamp: int, namespace: Any) -> None:
            count(timestamp)
            trigger(timestamp, namespace)

        return call

    def count_last_timers(self) -> Callable[[int], None]:
        """Return a function to call before each event-time timer that fires at the end of the data.

        It raises ProgramError if timers set timers endlessly.
        """
        limit = _LAST + _LAST_EACH * len(self.event_timers)
        left = limit + len(self.event_timers)

        def count(timestamp: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ProgramError(
                    f"operator {self._keys.operator!r}, key {shorten(self._keys.key)}: after the end of the data,"
                    f" timers have set more than {limit} timers, the latest at {timestamp}. As each fires at once, this"
                    " would never end: set no timer if current_watermark() is 2**63 - 1, or use batch mode, which drops"
                    " such timers"
                )

        return count

    def begin_epoch(self, now: int) -> None:
        self.processing_timers.begin_epoch(now)
        self.schedule()

    def fire_due_processing_time_timers(self, now: int) -> None:
        self._scheduled_at = None
        first = self.processing_timers.next_for_clock()
        if first is not None and first <= now:
            self.processing_timers.fire(now, self.triggerable.on_processing_time)
            self.triggerable.flush()
        self.schedule()

    def fire_overdue_processing_time_timers(self) -> None:
        if self.processing_timers.has_overdue():
            self.processing_timers.fire_overdue(self.triggerable.on_processing_time)
            self.triggerable.flush()
        self.schedule()

    def next_processing_time_timer(self) -> int | None:
        return self.processing_timers.next_timestamp()

    def schedule(self) -> None:
        timestamp = self.processing_timers.next_for_clock()
        if timestamp == self._scheduled_at:
            return
        self.unschedule()
        if timestamp is not None:
            self._scheduled_at = timestamp
            self._scheduled = self._clock.register_timer(timestamp, self.fire_due_processing_time_timers)

    def unschedule(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = None
        self._scheduled_at = None

    def num_event_time_timers(self) -> int:
        return len(self.event_timers)

    def num_processing_time_timers(self) -> int:
        return len(self.processing_timers)


class InternalTimeServiceManager:
    """The timer services of one operator, by name."""

    _service_class: type[InternalTimerService] = InternalTimerService

    def __init__(self, keys: KeyContext, processing_time_service: ProcessingTimeService, *, fires: bool = True) -> None:
        self._keys = keys
        self._clock = processing_time_service
        self._fires = fires
        self._services: dict[str, InternalTimerService] = {}

    def get_internal_timer_service(
        self,
        name: str,
        triggerable: Triggerable,
        *,
        namespaced: bool = False,
        by_user: bool = False,
        may_run_on: bool = False,
    ) -> InternalTimerService:
        """Return the service with this name, creating it on first use.

        ``by_user`` is True if user code sets the timers.
        """
        service = self._services.get(name)
        if service is None:
            service = self._services[name] = self._service_class(
                name,
                self._keys,
                self._clock,
                triggerable,
                namespaced=namespaced,
                fires=self._fires,
                may_run_on=may_run_on,
            )
            if by_user:
                service.let_user_set()
        return service

    def advance_watermark(self, watermark: int) -> None:
        for service in self._services.values():
            service.advance_watermark(watermark)

    def services(self) -> Iterable[InternalTimerService]:
        return self._services.values()
