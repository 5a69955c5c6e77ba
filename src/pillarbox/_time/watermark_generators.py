"""Watermark generators, which advance event time as records arrive.

A generator receives the timestamps of one stream (for a source, of one partition), in the thread that reads the
records. All times are Unix times in ms. Follows Flink's ``org.apache.flink.api.common.eventtime``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, Protocol

from pillarbox._errors import shorten
from pillarbox._time.duration import DurationLike, positive_millis, to_millis
from pillarbox._time.timestamp_assigner import EXPECTED, MAX_WATERMARK, MIN_TIMESTAMP, to_timestamp


class WatermarkReceiver(Protocol):
    """Receives a stream's watermarks and statuses (idle or active)."""

    def process_watermark(self, timestamp: int) -> None: ...

    def process_status(self, idle: bool) -> None:
        """Handle a status change."""


class WatermarkOutput(ABC):
    """Receives the watermarks of a generator."""

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """Declare that no record with a timestamp of at most ``timestamp_ms`` is expected.

        A timestamp that does not exceed the last watermark has no effect. A higher timestamp ends idleness, too.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Declare that downstream must not wait for this stream's watermarks."""

    @abstractmethod
    def mark_active(self) -> None:
        """Revoke ``mark_idle``."""


class WatermarkGenerator(ABC):
    """Derives watermarks from the timestamps of records (Flink's interface).

    Attributes:
        batchable: whether the generator only needs the largest timestamp of a batch of records (False by default). If
            so, :meth:`on_batch` is called once per batch *instead of* :meth:`on_event` for each record, which avoids
            converting columns to Python objects.
    """

    batchable: bool = False

    @abstractmethod
    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Handle a record and its timestamp (Unix time in ms). May emit a watermark."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark if it is new. Called after each batch of records, and at the end of each epoch."""

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        """Handle the largest timestamp of a batch of records.

        Raises:
            NotImplementedError: the generator is batchable and does not override this method.
        """
        raise NotImplementedError(f"{type(self).__name__} is batchable, so it must implement on_batch()")


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Generates watermarks for records that are at most D milliseconds out of order.

    After a record with timestamp T, records down to T - D are still expected, so the watermark is T - D - 1.
    """

    batchable = True

    def __init__(self, max_out_of_orderness: DurationLike) -> None:
        """Create a generator. An int ``max_out_of_orderness`` is in milliseconds."""
        self._distance = to_millis(max_out_of_orderness) + 1
        self._max_timestamp = MIN_TIMESTAMP

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        watermark = self._max_timestamp - self._distance
        # Also False before the first record.
        if watermark > MIN_TIMESTAMP:
            output.emit_watermark(watermark)


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Generates watermarks for ascending timestamps: always 1 ms before the latest timestamp."""

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarksGenerator(WatermarkGenerator):
    """Emits no watermarks, for programs that only use processing time."""

    batchable = True

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None: ...

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None: ...

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


class WatermarksWithIdleness(WatermarkGenerator):
    """Marks a stream idle if it has no records for a while (Flink's class).

    The timeout starts at the second of two consecutive calls of :meth:`on_periodic_emit` with no record in between,
    because a task that is not running is not idle. Any record ends idleness, even a late record. (In Flink, only the
    next watermark ends it.)
    """

    def __init__(self, generator: WatermarkGenerator, idle_timeout: DurationLike, now_ms: Callable[[], int]) -> None:
        """Wrap a generator. ``now_ms`` may be any clock, because only differences are used."""
        self.generator = generator
        self._timeout = positive_millis(idle_timeout, "the idle timeout")
        self._now_ms = now_ms
        self._seen_since_probe = False
        self._quiet_since: int | None = None
        self._idle = False
        self.batchable: bool = generator.batchable

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self._activity(output)
        self.generator.on_event(event, timestamp, output)

    def on_batch(self, max_timestamp: int, output: WatermarkOutput) -> None:
        self._activity(output)
        self.generator.on_batch(max_timestamp, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Mark the stream idle after the timeout. Until then, call the wrapped generator."""
        if not self._is_idle_now():
            self.generator.on_periodic_emit(output)
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
        return None if self._idle or self._quiet_since is None else self._quiet_since + self._timeout + 1

    def snapshot(self) -> dict[str, Any]:
        """Return the start of the current silence, and whether the stream is idle.

        Only meaningful if processes share a clock.
        """
        return {"quiet_since": self._quiet_since, "silent": self._idle}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._quiet_since = snapshot.get("quiet_since")
        self._idle = snapshot.get("silent", False)


class MonotoneWatermarkOutput(WatermarkOutput):
    """Drops watermarks that do not advance, repeated statuses, and everything after the end of event time.

    Corresponds to Flink's ``WatermarkToDataOutput``.

    Args:
        idle: the last status that the sink has received. If None (unknown), the first status is always emitted.
    """

    __slots__ = ("_idle", "_last", "_sink", "_zone")

    def __init__(
        self,
        sink: WatermarkReceiver,
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
        return self._last

    @property
    def is_idle(self) -> bool | None:
        return self._idle

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Emit a watermark if it exceeds the last watermark. Raises ValueError if it is not a timestamp."""
        if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_WATERMARK:
            try:
                timestamp_ms = to_timestamp(timestamp_ms, self._zone)
            except (TypeError, ValueError) as error:
                what = EXPECTED if isinstance(error, TypeError) else error
                kind = type(timestamp_ms).__name__
                raise ValueError(f"{shorten(timestamp_ms)} ({kind}) is not a watermark: {what}") from None
        if timestamp_ms > self._last:
            self.mark_active()
            self._last = timestamp_ms
            self._sink.process_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        if not self._idle and self._last < MAX_WATERMARK:
            self._idle = True
            self._sink.process_status(True)

    def mark_active(self) -> None:
        if self._idle is not False and self._last < MAX_WATERMARK:
            self._idle = False
            self._sink.process_status(False)
