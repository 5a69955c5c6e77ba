"""Timers of keyed operators: per key and namespace, without duplicates, checkpointed, deletable (T1-T5, T9).

The timers of a key are part of its row in the keyed state, so they are written and restored with it; the queues
here are an index over those rows. Source of the behaviour: Flink's ``InternalTimerServiceImpl`` and
``InternalTimeServiceManagerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from itertools import compress
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from pillarbox.errors import ProgramError, shorten
from pillarbox.time.clock import ProcessingTimeService, ScheduledTimer
from pillarbox.time.timer_queue import TimerQueue
from pillarbox.time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP, to_millisecond

__all__ = ["VOID_NAMESPACE", "InternalTimeServiceManager", "InternalTimerService", "KeyContext", "Triggerable"]

VOID_NAMESPACE = None
_NONE = type(None)
_log = logging.getLogger("pillarbox")


class KeyContext(Protocol):
    """What a timer service needs of the keyed state: the rows, and which of them is current.

    ``row[0]`` is the row's mark: at least 0 while the row has no unwritten change; ``touch`` notes one.
    """

    operator: str
    key: Any
    row: list[Any]

    def set_current_key(self, key: Any) -> None: ...

    def touch(self) -> None: ...

    def create_timer_slot(self, name: str, index: TimerIndex) -> int: ...


class Triggerable(Protocol):
    """The operator whose timers they are. The timer's key is the current key during the call."""

    def on_event_time(self, timestamp: int, namespace: Any) -> None: ...

    def on_processing_time(self, timestamp: int, namespace: Any) -> None: ...


class TimerIndex:
    """One time domain of a service: the queue, and the slot of the keys' rows that it indexes.

    A row's slot holds None, one *stamp*, or a set of stamps: most keys have one timer, and a set costs 200 bytes.
    A stamp is the timestamp, or ``(timestamp, namespace)`` in a service with namespaces.
    """

    __slots__ = ("_dropped", "_keys", "_name", "_namespaced", "queue", "slot")

    def __init__(self, name: str, keys: KeyContext, namespaced: bool) -> None:
        self._name = name
        self._keys = keys
        self._namespaced = namespaced
        # How many restored timers were no timers, and the key of the first.
        self._dropped: tuple[int, Any] = (0, None)
        self.queue = TimerQueue()
        self.slot = keys.create_timer_slot(name, self)

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Add a timer of the current key, unless it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits: in the queue and in the checkpoint it would do harm
                long after the record that brought it.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        keys = self._keys
        row = keys.row
        slot = self.slot
        stamp: Any = (timestamp, namespace) if self._namespaced else timestamp
        present = row[slot]
        if present is None:
            row[slot] = stamp
        elif type(present) is set:
            if stamp in present:
                return
            present.add(stamp)
        elif present == stamp:
            return
        else:
            row[slot] = {present, stamp}
        if row[0] >= 0:
            keys.touch()
        self.queue.add(timestamp, (keys.key, namespace) if self._namespaced else keys.key)

    def delete(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Remove a timer of the current key, if it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        if self._forget(timestamp, namespace):
            key = self._keys.key
            self.queue.discard(timestamp, (key, namespace) if self._namespaced else key)

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, also those registered meanwhile."""
        queue = self.queue
        keys = self._keys
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= limit:
            # One by one: a timer that is registered meanwhile for an earlier time comes before the rest.
            for owner in queue.pop(timestamp):
                key: Any = owner
                namespace: Any = VOID_NAMESPACE
                if self._namespaced:
                    key, namespace = key
                keys.set_current_key(key)
                # A timer that was called before, at the same timestamp, may have deleted this one.
                if self._forget(timestamp, namespace):
                    queue.size -= 1
                    trigger(timestamp, namespace)
                if queue.overtaken:
                    break

    def _checked(self, timestamp: Any) -> int:
        """Return a timestamp that is not a plain int as one, or refuse it."""
        try:
            return to_millisecond(timestamp)
        except ValueError as error:
            hint = str(error)
        if timestamp is None:
            hint += (
                "; ctx.timestamp() is None where records have no timestamp: put assign_timestamps_and_watermarks(...)"
                " before, or use processing time"
            )
        domain = "a processing-time" if self._name.endswith("/processing") else "an event-time"
        raise ProgramError(
            f"operator {self._keys.operator!r}, key {shorten(self._keys.key)}: {domain} timer cannot be set or deleted"
            f" at {shorten(timestamp)} ({type(timestamp).__name__}): {hint}"
        )

    def _forget(self, timestamp: int, namespace: Any) -> bool:
        row = self._keys.row
        slot = self.slot
        stamp: Any = (timestamp, namespace) if self._namespaced else timestamp
        present = row[slot]
        if present is None:
            return False
        if type(present) is set:
            if stamp not in present:
                return False
            present.discard(stamp)
            if len(present) == 1:
                row[slot] = present.pop()
        elif present == stamp:
            row[slot] = None
        else:
            return False
        if row[0] >= 0:
            self._keys.touch()
        return True

    def _take_out(self, stamp: Any) -> None:
        """Take out of the current row what is no timer."""
        # By identity: NaN equals nothing, not even itself; and arrays do not compare to a bool.
        row = self._keys.row
        slot = self.slot
        present = row[slot]
        rest = {other for other in present if other is not stamp} if type(present) is set else set()
        row[slot] = rest if len(rest) > 1 else rest.pop() if rest else None
        if row[0] >= 0:
            self._keys.touch()

    def load(self, keys: list[Any], rows: list[list[Any]]) -> None:
        """Index the timers of restored rows; :meth:`end_loading` ends it."""
        owners: list[Any] = keys
        stamps: list[Any] = list(map(itemgetter(self.slot), rows))
        # Mostly each key has one timer, or none has any, and there are millions of them at a cold start.
        kinds = set(map(type, stamps))
        if kinds == {_NONE}:
            return
        if _NONE in kinds:
            present = [stamp is not None for stamp in stamps]
            owners, stamps = list(compress(owners, present)), list(compress(stamps, present))
        if not kinds <= {int, _NONE}:
            owners, stamps = self._unpacked(owners, stamps)
        try:
            timestamps = np.array(stamps, np.int64)
        except OverflowError:
            owners, stamps = self._unpacked(keys, [row[self.slot] for row in rows])
            timestamps = np.array(stamps, np.int64)
        self.queue.load(timestamps, owners)

    def _unpacked(self, keys: list[Any], slots: list[Any]) -> tuple[list[Any], list[int]]:
        """Return owners and timestamps of the timers in restored rows, and take out of the rows what is none.

        Checkpoints of versions that did not check timers may hold any object in the place of a timestamp.
        """
        owners: list[Any] = []
        timestamps: list[int] = []
        for key, present in zip(keys, slots):
            for stamp in list(present) if type(present) is set else () if present is None else (present,):
                timestamp, owner = (stamp[0], (key, stamp[1])) if self._namespaced else (stamp, key)
                if type(timestamp) is int and MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
                    timestamps.append(timestamp)
                    owners.append(owner)
                else:
                    self._keys.set_current_key(key)
                    self._take_out(stamp)
                    count, first = self._dropped
                    self._dropped = (count + 1, first if count else key)
        return owners, timestamps

    def end_loading(self) -> None:
        """Have the restored timers ready, and tell of those that were none."""
        self.queue.sort()
        count, key = self._dropped
        if count:
            self._dropped = (0, None)
            _log.warning(
                "operator %r: the checkpoint holds %d timers whose timestamps are no 64-bit integers, the first of them"
                " of key %s; they could never fire, and are dropped",
                self._keys.operator,
                count,
                shorten(key),
            )

    def replace(self, key: Any, old: Any, new: Any) -> None:
        """Take note that a key's slot was overwritten from outside."""
        for timestamp, owner in self._entries(key, old):
            self.queue.discard(timestamp, owner)
        for timestamp, owner in self._entries(key, new):
            self.queue.add(timestamp, owner)

    def _entries(self, key: Any, present: Any) -> Iterable[tuple[int, Hashable]]:
        if present is None:
            return
        for stamp in present if type(present) is set else (present,):
            if self._namespaced:
                yield stamp[0], (key, stamp[1])
            else:
                yield stamp, key


class InternalTimerService:
    """The timers of one operator under one name. Only the mailbox thread may touch it.

    Args:
        fires: whether processing-time timers can fire here; where not, they are refused.
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
    ) -> None:
        self.name = name
        self._keys = keys
        self._fires = fires
        self.current_watermark = MIN_TIMESTAMP
        self._triggerable = triggerable
        self._clock = processing_time_service
        self.event_timers = TimerIndex(f"{name}/event", keys, namespaced)
        self.processing_timers = TimerIndex(f"{name}/processing", keys, namespaced)
        self._scheduled: ScheduledTimer | None = None
        self._scheduled_at: int | None = None

    def current_processing_time(self) -> int:
        """Return the processing time in epoch milliseconds."""
        return self._clock.current_processing_time()

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Have the current key called when the watermark reaches ``timestamp`` (epoch ms)."""
        self.event_timers.register(timestamp, namespace)

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Remove an event-time timer of the current key; nothing happens when there is none."""
        self.event_timers.delete(timestamp, namespace)

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Have the current key called when the clock has passed ``timestamp`` (epoch ms).

        Raises:
            ProgramError: it would never be called.
        """
        if not self._fires:
            raise ProgramError(
                f"operator {self._keys.operator!r}, key {shorten(self._keys.key)}: a processing-time timer is set, but"
                " the program does not say that it has any, so Spark runs no epoch when its time has come: say"
                " process(..., processing_time=True), or uses_processing_time = True in the class of the function"
            )
        self.processing_timers.register(timestamp, namespace)
        # Only the earliest timer is scheduled (T4): re-schedule when this one comes before it.
        if self._scheduled_at is None or timestamp < self._scheduled_at:
            self.schedule()

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Remove a processing-time timer of the current key; nothing happens when there is none."""
        self.processing_timers.delete(timestamp, namespace)

    def advance_watermark(self, watermark: int) -> None:
        """Fire all event-time timers up to ``watermark`` in timestamp order (T5)."""
        self.current_watermark = watermark
        self.event_timers.fire(watermark, self._triggerable.on_event_time)

    def fire_due_processing_time_timers(self, now: int) -> None:
        """Fire all processing-time timers up to ``now``, in order, then schedule the next."""
        self._scheduled_at = None
        self.processing_timers.fire(now, self._triggerable.on_processing_time)
        self.schedule()

    def next_processing_time_timer(self) -> int | None:
        """Return the earliest processing-time timer's timestamp."""
        return self.processing_timers.queue.next_timestamp()

    def schedule(self) -> None:
        """Schedule the earliest processing-time timer with the clock."""
        timestamp = self.processing_timers.queue.next_timestamp()
        if timestamp == self._scheduled_at:
            return
        self.unschedule()
        if timestamp is not None:
            self._scheduled_at = timestamp
            self._scheduled = self._clock.register_timer(timestamp, self.fire_due_processing_time_timers)

    def unschedule(self) -> None:
        """Take the scheduled timer back from the clock: nothing fires until :meth:`schedule`."""
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = None
        self._scheduled_at = None

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers of all keys."""
        return len(self.event_timers.queue)

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers of all keys."""
        return len(self.processing_timers.queue)


class InternalTimeServiceManager:
    """The timer services of one operator: the same name always gives the same service (T2)."""

    def __init__(self, keys: KeyContext, processing_time_service: ProcessingTimeService, *, fires: bool = True) -> None:
        self._keys = keys
        self._clock = processing_time_service
        self._fires = fires
        self._services: dict[str, InternalTimerService] = {}

    def get_internal_timer_service(
        self, name: str, triggerable: Triggerable, *, namespaced: bool = False
    ) -> InternalTimerService:
        """Return the service of this name, made at the first call."""
        service = self._services.get(name)
        if service is None:
            service = InternalTimerService(
                name, self._keys, self._clock, triggerable, namespaced=namespaced, fires=self._fires
            )
            self._services[name] = service
        return service

    def advance_watermark(self, watermark: int) -> None:
        """Advance every service to ``watermark``."""
        for service in self._services.values():
            service.advance_watermark(watermark)

    def services(self) -> Iterable[InternalTimerService]:
        """Return all services."""
        return self._services.values()
