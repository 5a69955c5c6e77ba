"""``StatusWatermarkValve``, a watermark valve.

Follows Flink's class of the same name (2.x). All times are Unix times in ms. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from pillarbox._errors import shorten
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox._time.watermark_generators import WatermarkReceiver


class _Channel:
    """The state of one channel.

    A channel is aligned if it is active and has reached the output watermark.
    """

    __slots__ = ("aligned", "idle", "watermark")

    def __init__(self, watermark: int = MIN_TIMESTAMP, idle: bool = False, aligned: bool = True) -> None:
        self.watermark = watermark
        self.idle = idle
        self.aligned = aligned


class StatusWatermarkValve:
    """Combines the watermarks and statuses (idle or active) of many channels into one of each.

    - The output watermark is the minimum of the *aligned* channels' watermarks, and is strictly ascending.
    - The watermarks of an idle channel are ignored until it is active again.
    - A channel that becomes active is aligned once its watermark has caught up with the output.
    - When the last active channel becomes idle, the valve emits the largest watermark of all channels and becomes idle.

    After every call, the output has reached the aligned channels' minimum watermark. (In Flink, this may take until the
    next watermark.)
    """

    def __init__(self, channels: Iterable[Hashable]) -> None:
        """Create a valve. It emits no watermark until each channel has sent a watermark or is idle."""
        self._channels: dict[Hashable, _Channel] = {channel: _Channel() for channel in channels}
        self._output = MIN_TIMESTAMP
        # None means idle, but perhaps unknown downstream.
        self._idle: bool | None = False
        # After a restore, the output may not match the channels.
        self._unsettled = False

    @property
    def current_watermark(self) -> int:
        """The last emitted watermark, or ``MIN_TIMESTAMP`` before the first."""
        return self._output

    @property
    def is_idle(self) -> bool:
        """Whether the last emitted status is idle. A new valve is active."""
        return self._idle is not False

    @property
    def channels(self) -> tuple[Hashable, ...]:
        return tuple(self._channels)

    @property
    def is_aligned(self) -> bool:
        return all(state.aligned for state in self._channels.values())

    def watermark_of(self, channel: Hashable) -> int:
        return self._known(channel).watermark

    def is_idle_channel(self, channel: Hashable) -> bool:
        return self._known(channel).idle

    def input_watermark(self, channel: Hashable, timestamp: int, sink: WatermarkReceiver) -> None:
        """Process a channel's watermark, ignoring it unless it advances the channel."""
        state = self._channel(channel, sink)
        if state.idle or timestamp <= state.watermark:
            return
        before = state.watermark
        state.watermark = timestamp
        if not state.aligned:
            state.aligned = timestamp >= self._output
        elif before > self._output:
            return
        self._advance(sink)

    def input_status(self, channel: Hashable, idle: bool, sink: WatermarkReceiver) -> None:
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

    def input_at_once(
        self, changes: Mapping[Hashable, tuple[int | None, bool | None]], sink: WatermarkReceiver
    ) -> None:
        """Process changes of several channels together, in any order.

        ``changes`` maps channels to (last watermark while active, last status). A channel that becomes active is
        aligned if it has reached the previous output watermark.
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
            # A channel ahead of all others was active in between.
            self._idle = False
            sink.process_status(False)
        self._on_idle(sink)

    def snapshot(self) -> dict[str, Any]:
        """Return the valve's state.

        ``{"watermark": ms, "idle": bool, "channels": {channel: (watermark_ms, idle, aligned)}}``
        """
        return {
            "watermark": self._output,
            "idle": self.is_idle,
            "channels": {name: (state.watermark, state.idle, state.aligned) for name, state in self._channels.items()},
        }

    def restore(self, snapshot: dict[str, Any], *, repeat_status: bool = False) -> None:
        """Restore a snapshot, without emitting anything before the next input.

        The snapshot may have other channels. New channels hold the output back until they have caught up. With
        ``repeat_status``, an idle status is emitted again.
        """
        saved = {name: _Channel(*state) for name, state in snapshot["channels"].items()}
        self._channels = {name: saved.get(name) or _Channel() for name in self._channels}
        self._output = snapshot["watermark"]
        self._idle = None if snapshot["idle"] and repeat_status else snapshot["idle"]
        self._unsettled = True

    def _channel(self, channel: Hashable, sink: WatermarkReceiver) -> _Channel:
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

    def _settle(self, sink: WatermarkReceiver) -> None:
        self._unsettled = False
        if any(not state.idle for state in self._channels.values()):
            self._on_active(sink)
        else:
            self._on_idle(sink)

    def _on_active(self, sink: WatermarkReceiver) -> None:
        if self._idle is not False:
            self._idle = False
            sink.process_status(False)
        self._advance(sink)

    def _on_idle(self, sink: WatermarkReceiver) -> None:
        channels = self._channels.values()
        if any(not state.idle for state in channels):
            self._advance(sink)
        elif self._idle is not True:
            self._emit(max(state.watermark for state in channels), sink)
            self._idle = True
            sink.process_status(True)

    def _advance(self, sink: WatermarkReceiver) -> None:
        aligned = [state.watermark for state in self._channels.values() if state.aligned]
        if aligned:
            self._emit(min(aligned), sink)

    def _emit(self, watermark: int, sink: WatermarkReceiver) -> None:
        if watermark > self._output:
            # Set first, because the sink may read `current_watermark`.
            self._output = watermark
            sink.process_watermark(watermark)
