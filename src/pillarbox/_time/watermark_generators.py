"""Watermark generators: how event time goes forward as records come.

A generator sees the timestamps of one stream (at the source, of one partition) and says now and
then, by a watermark, that no older record is expected. Source of the behaviour: Flink's
``WatermarkGenerator`` and the classes around it in ``org.apache.flink.api.common.eventtime``, and
``WatermarkToDataOutput``. All times are milliseconds.

A generator belongs to one thread, that in which its records are read; only the idleness clock that
it is given may be somebody else's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, Protocol

from pillarbox._errors import shorten
from pillarbox._time.duration import DurationLike, positive_millis, to_millis
from pillarbox._time.timestamps import EXPECTED, MAX_WATERMARK, MIN_TIMESTAMP, to_timestamp


class WatermarkSink(Protocol):
    """Takes the watermarks and statuses of a stream: the next operator, several, or the record writer.

    They are called in the caller's thread.
    """

    def process_watermark(self, timestamp: int) -> None:
        """Take a watermark, in epoch milliseconds."""

    def process_status(self, idle: bool) -> None:
        """Take a change of status: idle (True) or active again (False)."""


class WatermarkOutput(ABC):
    """Receives the watermarks of a generator."""

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """Declare that no record with a timestamp of at most ``timestamp_ms`` is expected any more.

        A watermark that is not above the last one has no effect; any other also ends idleness.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Declare that downstream must not wait for this stream's watermarks for the time being."""

    @abstractmethod
    def mark_active(self) -> None:
        """Take ``mark_idle`` back."""


class WatermarkGenerator(ABC):
    """Makes watermarks from the timestamps that go by (Flink's interface).

    Attributes:
        batchable: whether the largest timestamp of a run of records is all that the generator
            needs. The runtime then calls :meth:`on_batch` once for each run *instead of*
            :meth:`on_event` for each record, and columnar data need not become Python objects.
            False unless a generator says otherwise.
    """

    batchable: bool = False

    @abstractmethod
    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Handle a record and its timestamp (epoch milliseconds); may emit a watermark right away."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, if there is a new one; called at an interval, and after each run of records."""

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        """Handle the largest timestamp of a run of records. Only called where ``batchable`` is True.

        Raises:
            NotImplementedError: the generator calls itself batchable but is not.
        """
        raise NotImplementedError(f"{type(self).__name__} is batchable, so it has to implement on_batch()")


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Watermarks for records that come at most ``delay`` milliseconds later than younger ones.

    After a record with timestamp T, records down to T - delay are still expected, so the watermark
    is T - delay - 1. Nothing is emitted before the first record.
    """

    batchable = True

    def __init__(self, max_out_of_orderness: DurationLike) -> None:
        """Make a generator.

        Args:
            max_out_of_orderness: the bound; as an int, milliseconds.

        Raises:
            ValueError: not a duration, or a negative one.
        """
        self._distance = to_millis(max_out_of_orderness) + 1
        self._max_timestamp = MIN_TIMESTAMP

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Note the timestamp."""
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        """Note the largest timestamp of a run."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the watermark that follows from the largest timestamp so far."""
        watermark = self._max_timestamp - self._distance
        # Below the smallest timestamp there is nothing to say; that also covers "no record yet".
        if watermark > MIN_TIMESTAMP:
            output.emit_watermark(watermark)


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Watermarks for timestamps that never go down: just below the latest record's."""

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarksGenerator(WatermarkGenerator):
    """No watermarks at all: for programs in processing time only."""

    batchable = True

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Do nothing."""

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        """Do nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Do nothing."""


class WatermarksWithIdleness(WatermarkGenerator):
    """Adds to a generator that the stream is idle when no record came for a while (Flink's class).

    Idleness is looked at in :meth:`on_periodic_emit` only. The countdown starts at the first
    periodic call that saw no record since the one before, not at the last record: a task that was
    not run for an hour (its worker had other epochs to do) was not idle for that hour. The stream
    is idle when strictly more than the timeout has gone by from then on; it is active again at the
    next record. (Flink waits for the next watermark with that. Here a late record, which makes
    none, ends idleness as well: the valve downstream waits until such a channel has caught up.)
    """

    def __init__(self, generator: WatermarkGenerator, idle_timeout: DurationLike, now_ms: Callable[[], int]) -> None:
        """Wrap a generator.

        Args:
            generator: makes the watermarks.
            idle_timeout: how long without a record is idle; as an int, milliseconds.
            now_ms: the clock, in milliseconds since whenever; only differences count.

        Raises:
            ValueError: the timeout is zero, negative or no duration.
        """
        self._generator = generator
        self._timeout = positive_millis(idle_timeout, "the idle timeout")
        self._now_ms = now_ms
        self._seen_since_probe = False
        self._quiet_since: int | None = None
        self._idle = False
        self.batchable: bool = generator.batchable

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Note that there is life, then hand on."""
        self._activity(output)
        self._generator.on_event(event, timestamp, output)

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        """Note that there is life, then hand on."""
        self._activity(output)
        self._generator.on_batch(max_timestamp, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Mark the stream idle if its time is up, else let the generator emit."""
        if not self._is_idle_now():
            self._generator.on_periodic_emit(output)
        elif not self._idle:
            self._idle = True
            output.mark_idle()

    def _activity(self, output: WatermarkOutput) -> None:
        self._seen_since_probe = True
        if self._idle:
            self._idle = False
            output.mark_active()

    def _is_idle_now(self) -> bool:
        if self._seen_since_probe:
            self._seen_since_probe = False
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = self._now_ms()
            return False
        return self._now_ms() - self._quiet_since > self._timeout

    @property
    def idle_at(self) -> int | None:
        """The first time at which the stream is idle, unless records come (ms); None: it is, or there were some."""
        return None if self._idle or self._quiet_since is None else self._quiet_since + self._timeout + 1

    def snapshot(self) -> dict[str, Any]:
        """Return since when no record has come, and whether that made the stream idle.

        It is for a clock that other processes have as well, and for the moment after a periodic call.
        """
        return {"quiet_since": self._quiet_since, "silent": self._idle}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Resume the countdown of a snapshot; a snapshot without one leaves it as it is."""
        self._quiet_since = snapshot.get("quiet_since")
        self._idle = snapshot.get("silent", False)


class MonotoneWatermarkOutput(WatermarkOutput):
    """Keeps a generator honest: watermarks are numbers that only go up, no status is said twice, none after the end.

    Flink's ``WatermarkToDataOutput``: a new watermark ends idleness first.

    Args:
        sink: gets watermarks in strictly ascending order, and statuses when they change.
        idle: the status that the sink knows; None: that is not known, and any will be said.
        last: the last watermark that the sink knows.
        zone: the time zone of naive datetimes.
    """

    __slots__ = ("_idle", "_last", "_sink", "_zone")

    def __init__(
        self,
        sink: WatermarkSink,
        *,
        idle: bool | None = False,
        last: int = MIN_TIMESTAMP,
        zone: tzinfo | None = None,
    ) -> None:
        self._sink = sink
        self._last = last
        self._idle = idle
        self._zone = zone

    @property
    def last(self) -> int:
        """The last watermark that was passed on."""
        return self._last

    @property
    def is_idle(self) -> bool | None:
        """Whether the stream is idle, as the sink knows it; None: it does not, as yet."""
        return self._idle

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Pass a watermark on if it is above the last one.

        Raises:
            ValueError: it is no point in time.
        """
        if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_WATERMARK:
            try:
                timestamp_ms = to_timestamp(timestamp_ms, self._zone)
            except (TypeError, ValueError) as error:
                what = EXPECTED if isinstance(error, TypeError) else error
                kind = type(timestamp_ms).__name__
                raise ValueError(f"{shorten(timestamp_ms)} ({kind}) is no watermark: {what}") from None
        if timestamp_ms > self._last:
            self.mark_active()
            self._last = timestamp_ms
            self._sink.process_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        """Pass the status on unless the stream is idle already."""
        if not self._idle and self._last < MAX_WATERMARK:
            self._idle = True
            self._sink.process_status(True)

    def mark_active(self) -> None:
        """Pass the status on unless the stream is active already."""
        if self._idle is not False and self._last < MAX_WATERMARK:
            self._idle = False
            self._sink.process_status(False)
