"""``StatusWatermarkValve``: one watermark out of the watermarks of many channels.

Source of the behaviour: Flink's class of the same name (2.x: the flush at the last active channel's
idleness is unconditional). All times are epoch milliseconds. Only the mailbox thread may touch a valve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from pillarbox._errors import shorten
from pillarbox._time.timestamps import MIN_TIMESTAMP
from pillarbox._time.watermark_generators import WatermarkSink


class _Channel:
    """The state of one channel.

    ``aligned`` is False for a channel that is idle, or is active again but has not yet reached the output
    watermark.
    """

    __slots__ = ("aligned", "idle", "watermark")

    def __init__(self, watermark: int = MIN_TIMESTAMP, idle: bool = False, aligned: bool = True) -> None:
        self.watermark = watermark
        self.idle = idle
        self.aligned = aligned


class StatusWatermarkValve:
    """Makes one watermark, and one status, out of the watermarks and statuses of all channels.

    - The output is the minimum over the *aligned* channels. It never goes back and is never
      repeated.
    - An idle channel is left out; its watermarks are ignored until it is active again.
    - A channel that is active again is counted as soon as it has caught up with the output, not
      before: what it sent until then would take time back.
    - When the last active channel becomes idle, the largest watermark of all is let out, so that
      the result does not depend on the order in which they fell idle; then the valve itself is
      idle.

    After every call, the output is at least the minimum over the aligned channels. (Flink, in one
    corner, waits for the next watermark with that: when a channel becomes active that is ahead of
    all others, which have not reached the output.)

    Every method that can make output takes the ``sink`` for it, and returns when the sink has taken
    it.
    """

    def __init__(self, channels: Iterable[Hashable]) -> None:
        """Make a valve.

        Args:
            channels: the channels that exist: the output stays where it is until each has sent a watermark or is idle.
        """
        self._channels: dict[Hashable, _Channel] = {channel: _Channel() for channel in channels}
        self._output = MIN_TIMESTAMP
        # None: it was, and there may be those downstream that have not heard so.
        self._idle: bool | None = False
        # After a restore, until the first call that has a sink: the output may not fit the
        # channels.
        self._unsettled = False

    @property
    def current_watermark(self) -> int:
        """The last watermark that was let out; ``MIN_TIMESTAMP`` before the first."""
        return self._output

    @property
    def is_idle(self) -> bool:
        """Whether the valve's last status was idle. A new valve is active."""
        return self._idle is not False

    @property
    def channels(self) -> tuple[Hashable, ...]:
        """The channels there are."""
        return tuple(self._channels)

    @property
    def is_aligned(self) -> bool:
        """Whether all channels count: none is idle, or has yet to catch up with the output."""
        return all(state.aligned for state in self._channels.values())

    def watermark_of(self, channel: Hashable) -> int:
        """Return the last watermark of a channel; ``MIN_TIMESTAMP`` before the first."""
        return self._known(channel).watermark

    def is_idle_channel(self, channel: Hashable) -> bool:
        """Return whether a channel's last status was idle."""
        return self._known(channel).idle

    def input_watermark(self, channel: Hashable, timestamp: int, sink: WatermarkSink) -> None:
        """Take a watermark of a channel. One that is not above the channel's last is ignored.

        Raises:
            ValueError: there is no such channel.
        """
        state = self._channel(channel, sink)
        if state.idle or timestamp <= state.watermark:
            return
        before = state.watermark
        state.watermark = timestamp
        if not state.aligned:
            state.aligned = timestamp >= self._output
        elif before > self._output:
            # Another channel holds the output where it is: this one's step forward cannot free it.
            return
        self._advance(sink)

    def input_status(self, channel: Hashable, idle: bool, sink: WatermarkSink) -> None:
        """Take a status of a channel: idle, or active again.

        Raises:
            ValueError: there is no such channel.
        """
        state = self._channel(channel, sink)
        if idle == state.idle:
            return
        state.idle = idle
        if idle:
            state.aligned = False
            self._someone_left(sink)
        else:
            state.aligned = state.watermark >= self._output
            self._someone_came(sink)

    def input_at_once(self, changes: Mapping[Hashable, tuple[int | None, bool | None]], sink: WatermarkSink) -> None:
        """Take what several channels have said, as if all of it had come at one moment.

        The outcome does not depend on their order: a channel that is active again has caught up if it has reached the
        output as it is before, however far others have come meanwhile.

        Args:
            changes: of channels the last watermark that they sent while they were active, and their last status; None:
                there was none.

        Raises:
            ValueError: there is no such channel.
        """
        if self._unsettled:
            self._settle(sink)
        states = [(self._channel(channel, sink), *said) for channel, said in changes.items()]
        for state, watermark, idle in states:
            if watermark is not None and watermark > state.watermark:
                state.watermark = watermark
            if idle is not None:
                state.idle = idle
            state.aligned = not state.idle and (state.aligned or state.watermark >= self._output)
        if not states:
            return
        if any(not state.idle for state in self._channels.values()):
            self._someone_came(sink)
            return
        if self._idle and max(state.watermark for state in self._channels.values()) > self._output:
            # One was active meanwhile, and came further than any before.
            self._idle = False
            sink.process_status(False)
        self._someone_left(sink)

    def snapshot(self) -> dict[str, Any]:
        """Return the valve's whole state as a plain dict of ints, bools and the channels' names.

        ``{"watermark": ms, "idle": bool, "channels": {channel: (watermark_ms, idle, aligned)}}``
        """
        return {
            "watermark": self._output,
            "idle": self.is_idle,
            "channels": {name: (state.watermark, state.idle, state.aligned) for name, state in self._channels.items()},
        }

    def restore(self, snapshot: dict[str, Any], *, say_anew: bool = False) -> None:
        """Take over the state of a snapshot.

        The valve keeps the channels that it was made with (the program upstream may have changed): those that the
        snapshot does not know start over and hold the output where it was until they have caught up. Nothing is
        emitted here; what the change of channels leads to comes out with the next input.

        Args:
            say_anew: whether there may be those downstream who have not heard that the valve is idle: it says so once
                more. To those who have, that is nothing new.
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
            self._someone_came(sink)
        else:
            self._someone_left(sink)

    def _someone_came(self, sink: WatermarkSink) -> None:
        if self._idle is not False:
            self._idle = False
            sink.process_status(False)
        self._advance(sink)

    def _someone_left(self, sink: WatermarkSink) -> None:
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
            # Noted first: the sink may look at `current_watermark`.
            self._output = watermark
            sink.process_watermark(watermark)
