"""``StatusWatermarkValve``: combines the watermarks of many channels into one.

Source of the behaviour: Flink's class of the same name (2.x: the flush at the last active channel's idleness is
unconditional). All times are epoch milliseconds. Only the mailbox thread may use a valve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from pillarbox._errors import shorten
from pillarbox._time.timestamps import MIN_TIMESTAMP
from pillarbox._time.watermark_generators import WatermarkSink


class _Channel:
    """State of one channel.

    ``aligned`` is False for an idle channel, and for an active one that has not yet reached the output watermark.
    """

    __slots__ = ("aligned", "idle", "watermark")

    def __init__(self, watermark: int = MIN_TIMESTAMP, idle: bool = False, aligned: bool = True) -> None:
        self.watermark = watermark
        self.idle = idle
        self.aligned = aligned


class StatusWatermarkValve:
    """Combines the watermarks and statuses of all channels into one watermark and one status.

    - The output is the minimum over the *aligned* channels. It is strictly ascending.
    - An idle channel does not count; its watermarks are ignored until it is active again.
    - A channel that becomes active counts as soon as it has caught up with the output, since it would take event time
      back.
    - When the last active channel becomes idle, the output is the largest watermark of all channels, independent of the
      order of becoming idle. Then the valve itself is idle.

    After every call, the output is at least the minimum over the aligned channels. (Flink waits for the next watermark
    if a channel becomes active ahead of all others, which have not reached the output.)

    Methods that emit take a ``sink``, and return after the sink's call.
    """

    def __init__(self, channels: Iterable[Hashable]) -> None:
        """Create a valve. Its output does not advance until each of the channels has sent a watermark or is idle."""
        self._channels: dict[Hashable, _Channel] = {channel: _Channel() for channel in channels}
        self._output = MIN_TIMESTAMP
        # None: idle, but downstream may not know it.
        self._idle: bool | None = False
        # True after a restore until the first call with a sink: the output may not match the channels.
        self._unsettled = False

    @property
    def current_watermark(self) -> int:
        """The last emitted watermark; ``MIN_TIMESTAMP`` before the first."""
        return self._output

    @property
    def is_idle(self) -> bool:
        """Whether the valve's last status is idle. A new valve is active."""
        return self._idle is not False

    @property
    def channels(self) -> tuple[Hashable, ...]:
        return tuple(self._channels)

    @property
    def is_aligned(self) -> bool:
        """Whether all channels count: they are active and have caught up with the output."""
        return all(state.aligned for state in self._channels.values())

    def watermark_of(self, channel: Hashable) -> int:
        return self._known(channel).watermark

    def is_idle_channel(self, channel: Hashable) -> bool:
        return self._known(channel).idle

    def input_watermark(self, channel: Hashable, timestamp: int, sink: WatermarkSink) -> None:
        """Take a watermark of a channel, unless it is at most the channel's last.

        Raises:
            ValueError: unknown channel.
        """
        state = self._channel(channel, sink)
        if state.idle or timestamp <= state.watermark:
            return
        before = state.watermark
        state.watermark = timestamp
        if not state.aligned:
            state.aligned = timestamp >= self._output
        elif before > self._output:
            # Another channel holds the output back.
            return
        self._advance(sink)

    def input_status(self, channel: Hashable, idle: bool, sink: WatermarkSink) -> None:
        """Take a status of a channel: idle, or active again.

        Raises:
            ValueError: unknown channel.
        """
        state = self._channel(channel, sink)
        if idle == state.idle:
            return
        state.idle = idle
        if idle:
            state.aligned = False
            self._on_idle(sink)
        else:
            state.aligned = state.watermark >= self._output
            self._on_active(sink)

    def input_at_once(self, changes: Mapping[Hashable, tuple[int | None, bool | None]], sink: WatermarkSink) -> None:
        """Take changes of several channels at one moment.

        Their order has no effect: a channel that becomes active has caught up if it reaches the output as it was before
        the call.

        Args:
            changes: maps channels to (last watermark while active, last status); None for unchanged.

        Raises:
            ValueError: unknown channel.
        """
        if self._unsettled:
            self._settle(sink)
        states = [(self._channel(channel, sink), *change) for channel, change in changes.items()]
        for state, watermark, idle in states:
            if watermark is not None and watermark > state.watermark:
                state.watermark = watermark
            if idle is not None:
                state.idle = idle
            state.aligned = not state.idle and (state.aligned or state.watermark >= self._output)
        if not states:
            return
        if any(not state.idle for state in self._channels.values()):
            self._on_active(sink)
            return
        if self._idle and max(state.watermark for state in self._channels.values()) > self._output:
            # A channel was active in between, and is ahead of all others.
            self._idle = False
            sink.process_status(False)
        self._on_idle(sink)

    def snapshot(self) -> dict[str, Any]:
        """Return the valve's state as a dict.

        ``{"watermark": ms, "idle": bool, "channels": {channel: (watermark_ms, idle, aligned)}}``
        """
        return {
            "watermark": self._output,
            "idle": self.is_idle,
            "channels": {name: (state.watermark, state.idle, state.aligned) for name, state in self._channels.items()},
        }

    def restore(self, snapshot: dict[str, Any], *, say_anew: bool = False) -> None:
        """Restore the state of a snapshot.

        The valve keeps its own channels, since the program upstream may have changed. Channels that the snapshot lacks
        start over, and hold the output back until they have caught up. Nothing is emitted before the next input.

        Args:
            say_anew: emit the idle status once more, because some of the receivers may not know it.
        """
        saved = {name: _Channel(*state) for name, state in snapshot["channels"].items()}
        self._channels = {name: saved.get(name) or _Channel() for name in self._channels}
        self._output = snapshot["watermark"]
        self._idle = None if snapshot["idle"] and say_anew else snapshot["idle"]
        self._unsettled = True

    def _channel(self, channel: Hashable, sink: WatermarkSink) -> _Channel:
        if self._unsettled:
            self._settle(sink)
        return self._known(channel)

    def _known(self, channel: Hashable) -> _Channel:
        try:
            return self._channels[channel]
        except KeyError:
            raise ValueError(
                f"the valve has no channel {shorten(channel)}, only {shorten(list(self._channels))}"
            ) from None

    def _settle(self, sink: WatermarkSink) -> None:
        self._unsettled = False
        if any(not state.idle for state in self._channels.values()):
            self._on_active(sink)
        else:
            self._on_idle(sink)

    def _on_active(self, sink: WatermarkSink) -> None:
        if self._idle is not False:
            self._idle = False
            sink.process_status(False)
        self._advance(sink)

    def _on_idle(self, sink: WatermarkSink) -> None:
        channels = self._channels.values()
        if any(not state.idle for state in channels):
            self._advance(sink)
        elif self._idle is not True:
            self._emit(max(state.watermark for state in channels), sink)
            self._idle = True
            sink.process_status(True)

    def _advance(self, sink: WatermarkSink) -> None:
        aligned = [state.watermark for state in self._channels.values() if state.aligned]
        if aligned:
            self._emit(min(aligned), sink)

    def _emit(self, watermark: int, sink: WatermarkSink) -> None:
        if watermark > self._output:
            # Set first: the sink may read `current_watermark`.
            self._output = watermark
            sink.process_watermark(watermark)
