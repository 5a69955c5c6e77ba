"""``EpochValve``: a watermark valve whose output does not depend on the order of channels within an epoch.

While all channels are aligned, event time is the minimum of their watermarks, in any order. But whether an idle channel
has caught up depends on how far the others are, which in Flink is a race. Here, statuses take effect at the end of the
epoch's input, and so do all watermarks in an epoch that begins with an idle or unaligned channel. So the same epochs
have the same event time. Only the mailbox thread may use a valve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from pillarbox._time.valve import StatusWatermarkValve
from pillarbox._time.watermark_generators import WatermarkSink


class EpochValve(StatusWatermarkValve):
    """The watermark valve of a task, which learns where epochs begin and end."""

    def __init__(self, channels: Iterable[Hashable]) -> None:
        super().__init__(channels)
        self._waits = False
        # Of each channel: the last watermark that it sent while active, and its last status.
        self._pending: dict[Hashable, tuple[int | None, bool | None]] = {}

    def begin_epoch(self) -> None:
        """Begin an epoch. Drops pending changes of a previous epoch that failed."""
        self._pending = {}
        self._waits = not self.is_aligned

    def watermark_came(self, channel: Hashable, timestamp: int, sink: WatermarkSink) -> None:
        """Take a channel's watermark. It takes effect now, or at the end of the epoch.

        Raises:
            ValueError: unknown channel.
        """
        if not self._waits and channel not in self._pending:
            self.input_watermark(channel, timestamp, sink)
            return
        before, idle = self._pending.get(channel, (None, None))
        if not (self.is_idle_channel(channel) if idle is None else idle):
            self._pending[channel] = timestamp if before is None else max(before, timestamp), idle

    def status_came(self, channel: Hashable, idle: bool) -> None:
        """Take a channel's status. It takes effect at the end of the epoch.

        Raises:
            ValueError: unknown channel.
        """
        self._known(channel)
        self._pending[channel] = self._pending.get(channel, (None, None))[0], idle

    def end_epoch(
        self, sink: WatermarkSink, more: Mapping[Hashable, tuple[int | None, bool | None]] | None = None
    ) -> None:
        """Apply pending changes. Until the next epoch, watermarks take effect at once.

        Args:
            more: changes of other channels (see :meth:`input_at_once`).
        """
        pending, self._pending = self._pending, {}
        self._waits = False
        self.input_at_once({**pending, **(more or {})}, sink)
