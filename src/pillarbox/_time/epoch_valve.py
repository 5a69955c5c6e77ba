"""``EpochValve``: a valve whose outcome does not depend on which channel comes first within an epoch.

Which channel's elements come first is up to a shuffle. Where all channels count, event time does not depend on it: it
is the least of their watermarks. But whether a channel that was idle has caught up depends on how far the others have
come by then: in Flink that is a race. Here statuses, and all watermarks in an epoch that begins with a channel that is
idle or behind, wait for the end of the epoch's input, and count at once then. So the same epochs have the same event
time. Only the mailbox thread may touch a valve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from pillarbox._time.valve import StatusWatermarkValve
from pillarbox._time.watermark_generators import WatermarkSink


class EpochValve(StatusWatermarkValve):
    """A valve of one task, which is told where epochs begin and end."""

    def __init__(self, channels: Iterable[Hashable]) -> None:
        super().__init__(channels)
        self._waits = False
        # Of channels the last watermark that they sent while they were active, and their last status.
        self._said: dict[Hashable, tuple[int | None, bool | None]] = {}

    def begin_epoch(self) -> None:
        """Begin an epoch; what the one before has said and was not counted is gone, as it failed."""
        self._said = {}
        self._waits = not self.is_aligned

    def watermark_came(self, channel: Hashable, timestamp: int, sink: WatermarkSink) -> None:
        """Take a channel's watermark; it counts now, or at the epoch's end.

        Raises:
            ValueError: there is no such channel.
        """
        if not self._waits and channel not in self._said:
            self.input_watermark(channel, timestamp, sink)
            return
        before, idle = self._said.get(channel, (None, None))
        if not (self.is_idle_channel(channel) if idle is None else idle):
            self._said[channel] = timestamp if before is None else max(before, timestamp), idle

    def status_came(self, channel: Hashable, idle: bool) -> None:
        """Take a channel's status; it counts at the epoch's end.

        Raises:
            ValueError: there is no such channel.
        """
        self._known(channel)
        self._said[channel] = self._said.get(channel, (None, None))[0], idle

    def end_epoch(
        self, sink: WatermarkSink, more: Mapping[Hashable, tuple[int | None, bool | None]] | None = None
    ) -> None:
        """Let all count that waits. Anything that comes before the next epoch counts as it comes, but for statuses.

        Args:
            more: what other channels have said in the epoch (see :meth:`input_at_once`).
        """
        said, self._said = self._said, {}
        self._waits = False
        self.input_at_once({**said, **(more or {})}, sink)
