"""Timers in batch mode. A key's timers fire after its last record.

Follows Flink's ``BatchExecutionInternalTimeService``.
"""

from __future__ import annotations

import logging
from typing import Any

from pillarbox._errors import place_of_task, shorten
from pillarbox._time.internal_timer_service import (
    VOID_NAMESPACE,
    InternalTimers,
    InternalTimerService,
    InternalTimeServiceManager,
    KeyContext,
)
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

_log = logging.getLogger("pillarbox")


class BatchDroppedTimers:
    """Logs the first timer that is dropped because an operator set it at the end of a key."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._is_reported = False

    def report(self, key: Any, timestamp: int) -> None:
        if not self._is_reported:
            self._is_reported = True
            _log.warning(
                "key %s: the timer at %s is dropped: a timer that fired at the key's end has set it, and batch mode"
                " has no later time. Further dropped timers are not logged %s",
                shorten(key),
                timestamp,
                place_of_task(self._operator),
            )


class _UserTimers:
    """Timers that user code sets. While an ended key's timers fire, new timers are dropped."""

    def __init__(self, timers: InternalTimers, keys: KeyContext) -> None:
        self._timers = timers
        self._keys = keys
        self._dropped = BatchDroppedTimers(keys.operator)
        self.ending: bool = False
        self.delete = timers.delete
        self.next_timestamp = timers.next_timestamp
        self.first_of_key = timers.first_of_key
        self.fire = timers.fire

    def __len__(self) -> int:
        return len(self._timers)

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        if not self.ending:
            self._timers.register(timestamp, namespace)
        else:
            self._dropped.report(self._keys.key, timestamp)


class BatchTimerService(InternalTimerService):
    """An operator's timer service in batch mode. After a key's last record, the service's watermark is the maximum."""

    _users: tuple[_UserTimers, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timers: tuple[InternalTimers, InternalTimers] = self.event_timers, self.processing_timers

    def let_user_set(self) -> None:
        events, processing = (_UserTimers(timers, self._keys) for timers in (self.event_timers, self.processing_timers))
        self._users = events, processing
        self.event_timers: InternalTimers = events
        self.processing_timers: Any = processing

    def end_key(self) -> None:
        if not len(self._timers[0]) and not len(self._timers[1]):
            return
        self.current_watermark: int = MAX_WATERMARK
        for timers in self._users:
            timers.ending = True
        self.event_timers.fire(MAX_WATERMARK, self.triggerable.on_event_time)
        self.processing_timers.fire(MAX_WATERMARK, self.triggerable.on_processing_time)
        for timers in self._users:
            timers.ending = False
        self.current_watermark = MIN_TIMESTAMP

    def schedule(self) -> None:
        """Do nothing, because the clock fires no timers in batch mode."""

    def begin_epoch(self, now: int) -> None: ...

    def fire_due_processing_time_timers(self, now: int) -> None: ...

    def fire_overdue_processing_time_timers(self) -> None: ...


class BatchTimeServiceManager(InternalTimeServiceManager):
    """An operator's timer services in batch mode."""

    _service_class = BatchTimerService
    _services: dict[str, BatchTimerService]  # type: ignore[assignment]

    def end_key(self) -> None:
        for service in self._services.values():
            service.end_key()
