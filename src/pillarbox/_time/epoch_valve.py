"""``EpochValve``: a watermark valve whose output does not depend on how channels interleave within an epoch.

In Flink, a race decides whether a formerly idle channel has caught up with the others. Here, status changes take effect
at the end of the epoch's input. Watermarks do too, if any channel was idle or unaligned when the epoch began.
Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from pillarbox._time.valve import StatusWatermarkValve
from pillarbox._time.watermark_generators import WatermarkReceiver


class EpochValve(StatusWatermarkValve):
    """A watermark valve with deterministic output."""

    def __init__(self, channels: Iterable[Hashable]) -> None:
        super().__init__(channels)
        self._waits = False
        # By channel: its last watermark while active, and its last status.
        self._pending: dict[Hashable, tuple[int | None, bool | None]] = {}

    def begin_epoch(self) -> None:
        """Begin an epoch, dropping pending changes of a failed epoch."""
        self._pending = {}
        self._waits = not self.is_aligned

    def watermark_came(self, channel: Hashable, timestamp: int, sink: WatermarkReceiver) -> None:
        """Process a channel's watermark immediately or at the end of the epoch."""
        if not self._waits and channel not in self._pending:
            self.input_watermark(channel, timestamp, sink)
            return
        before, idle = self._pending.get(channel, (None, None))
        if not (self.is_idle_channel(channel) if idle is None else idle):
            self._pending[channel] = timestamp if before is None else max(before, timestamp), idle

    def status_came(self, channel: Hashable, idle: bool) -> None:
        """Process a channel's status at the end of the epoch."""
        self._known(channel)
        self._pending[channel] = self._pending.get(channel, (None, None))[0], idle

    def end_epoch(
        self, sink: WatermarkReceiver, more: Mapping[Hashable, tuple[int | None, bool | None]] | None = None
    ) -> None:
        """Apply pending changes and ``more``. Until the next epoch, watermarks take effect immediately."""
        pending, self._pending = self._pending, {}
        self._waits = False
        self.input_at_once({**pending, **(more or {})}, sink)
