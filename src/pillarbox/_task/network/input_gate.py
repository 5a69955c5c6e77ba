"""The input of a task. Buffers arrive in any order; the gate restores the order within each channel.

A channel (an edge from one sending subtask) numbers its buffers of an epoch from 0 and ends with its barrier. A missing
or duplicate buffer, or an element after the barrier, raises an error.

The gate passes watermarks to a valve, which combines them. The valve has a channel for each sending subtask, but one
channel for all partitions of a source. That channel's watermark is the partitions' minimum when the epoch's input is
complete. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pillarbox._elements.buffers import Buffer, channel_code, decode, edge_of_channel, subtask_of_channel
from pillarbox._elements.elements import Barrier, Element, EndOfData
from pillarbox._elements.records import Records
from pillarbox._errors import ExchangeError
from pillarbox._task.network.spool import Extent, Spool
from pillarbox._task.vertex import InputEdge, sender_of_edge
from pillarbox._time.epoch_valve import EpochValve
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._time.watermark_generators import WatermarkReceiver


@dataclass
class _Channel:
    expected: int = 0
    early: dict[int, Extent] = field(default_factory=dict)
    has_barrier: bool = False
    ended: bool = False
    has_records: bool = False
    watermark: int | None = None
    idle: bool = False

    @property
    def affects_event_time(self) -> bool:
        return self.has_records or self.watermark is not None


class InputGate:
    """Orders the buffers that a task receives, and combines the watermarks in them."""

    def __init__(self, name: str, inputs: list[InputEdge]) -> None:
        self._name = name
        self._edges = {edge.id: edge for edge in inputs}
        self._known = {channel_code(edge.id, subtask) for edge in inputs for subtask in range(edge.parallelism)}
        sources = [("source", edge.id) for edge in inputs if edge.is_source]
        self._valve = EpochValve([*sorted(self._known), *sources])
        # The time of each source's last records, and each silent source's watermark at that time.
        self._last_active: dict[int, int] = {}
        self._last_watermark: dict[int, int] = {}
        self._epoch = 0
        self._channels: dict[int, _Channel] = {}
        self.any_barrier: bool = False
        self._spool = Spool()

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._channels = {}
        self.any_barrier = False
        self._valve.begin_epoch()

    def receive(self, buffer: Buffer) -> Iterator[tuple[int, Element]]:
        """Accept a buffer. Yields (channel, element) for each element that can now be processed, in order."""
        channel = self._channels.get(buffer.channel)
        if channel is None:
            if edge_of_channel(buffer.channel) not in self._edges:
                raise ExchangeError(f"{self._label}: a buffer arrived from the unknown channel {buffer.channel}")
            channel = self._channels[buffer.channel] = _Channel()
        if buffer.seq < channel.expected or buffer.seq in channel.early:
            raise ExchangeError(f"{self._label}: buffer {buffer.seq} of channel {buffer.channel} arrived twice")
        if buffer.seq > channel.expected:
            channel.early[buffer.seq] = self._spool.append(buffer.payload)
            return
        yield from self._in_turn(buffer.channel, channel, buffer.payload)
        while channel.expected in channel.early:
            payload = self._spool.read(channel.early.pop(channel.expected))
            yield from self._in_turn(buffer.channel, channel, payload)

    def _in_turn(self, number: int, channel: _Channel, payload: bytes) -> Iterator[tuple[int, Element]]:
        channel.expected += 1
        element = decode(payload)
        if channel.has_barrier:
            raise ExchangeError(f"{self._label}: channel {number} sent data after its barrier")
        if channel.ended and not isinstance(element, Barrier):
            raise ExchangeError(f"{self._label}: channel {number} sent {element!r} after the end of its data")
        if isinstance(element, Barrier):
            channel.has_barrier = self.any_barrier = True
        elif isinstance(element, EndOfData):
            channel.ended = True
        elif isinstance(element, Records):
            channel.has_records = True
            yield number, element
        else:
            yield number, element

    def edge_of(self, channel: int) -> InputEdge:
        return self._edges[edge_of_channel(channel)]

    @property
    def _label(self) -> str:
        return f"task {self._name!r}, epoch {self._epoch}"

    def aligned(self) -> bool:
        """Return whether the data of all channels has ended. Raises if a buffer or barrier is missing."""
        for number, channel in self._channels.items():
            if channel.early:
                raise ExchangeError(
                    f"{self._label}: buffer {channel.expected} of channel {number} is missing,"
                    f" but {len(channel.early)} later ones have arrived"
                )
            if not channel.has_barrier:
                raise ExchangeError(f"{self._label}: no barrier from channel {number}")
        self._spool.close()
        return bool(self._channels) and all(channel.ended for channel in self._channels.values())

    def watermark(self, number: int, timestamp: int, output: WatermarkReceiver) -> None:
        """Process a watermark immediately or, for a source, store it until the end of the epoch's input."""
        if number in self._known:
            self._valve.watermark_came(number, timestamp, output)
        else:
            self._channels[number].watermark = timestamp

    def status(self, number: int, idle: bool) -> None:
        if number in self._known:
            self._valve.status_came(number, idle)
        else:
            self._channels[number].idle = idle

    def advance(self, now: int, output: WatermarkReceiver) -> None:
        """Apply the stored watermarks and idle statuses at the end of the epoch's input.

        Idle partitions of a source do not hold back its watermark. If all partitions are idle, the source is idle, and
        its watermark is the partitions' maximum (as in Flink's valve). For a source without records, see
        :meth:`_in_silence`. ``now`` is the epoch's time (Unix time in ms).
        """
        changes: dict[Hashable, tuple[int | None, bool | None]] = {}
        silent: list[InputEdge] = []
        for number, edge in self._edges.items():
            if not edge.is_source:
                continue
            partitions = [
                channel
                for code, channel in self._channels.items()
                if edge_of_channel(code) == number and (channel.idle or channel.affects_event_time)
            ]
            if not partitions:
                silent.append(edge)
                continue
            self._last_active[number] = now
            self._last_watermark.pop(number, None)
            active = [channel for channel in partitions if not channel.idle]
            watermarks = [
                MIN_TIMESTAMP if channel.watermark is None else channel.watermark for channel in active or partitions
            ]
            changes["source", number] = min(watermarks) if active else max(watermarks), not active
        self._valve.end_epoch(output, changes)
        self._in_silence([edge for edge in silent if edge.reacts_to_silence], now, output)

    def end(self, output: WatermarkReceiver) -> None:
        for channel in self._valve.channels:
            self._valve.input_status(channel, False, output)
            self._valve.input_watermark(channel, MAX_WATERMARK, output)

    def _in_silence(self, edges: list[InputEdge], now: int, output: WatermarkReceiver) -> None:
        """Advance the watermarks of sources without records.

        After ``progress_timeout`` without records, a source's watermark advances with the clock. After
        ``idle_timeout``, the source is idle: its watermark is ignored, unless all sources are idle.
        """
        for edge in edges:
            silent_for = now - self._last_active.setdefault(edge.id, now)
            self._last_watermark.setdefault(edge.id, self._valve.watermark_of(("source", edge.id)))
            if edge.idle_timeout is not None and silent_for >= edge.idle_timeout:
                self._valve.input_status(("source", edge.id), True, output)
        for edge in edges:
            watermark, timeout = self._last_watermark[edge.id], edge.progress_timeout
            silent_for = now - self._last_active[edge.id]
            if timeout is None or silent_for < timeout or watermark == MIN_TIMESTAMP:
                continue
            watermark = min(watermark + silent_for - timeout, MAX_WATERMARK - 1)  # the maximum means the end of input
            if not self._valve.is_idle_channel(("source", edge.id)):
                self._advance_source(edge.id, watermark, output)
            elif self._valve.is_idle and watermark > self._valve.current_watermark:
                self._advance_source(edge.id, watermark, output)
                self._valve.input_status(("source", edge.id), True, output)

    def _advance_source(self, number: int, watermark: int, output: WatermarkReceiver) -> None:
        self._valve.input_status(("source", number), False, output)
        self._valve.input_watermark(("source", number), watermark, output)

    def next_wake_up(self, now: int) -> int | None:
        """Return when a source without records next becomes idle or advances (Unix time in ms), or None."""
        times = []
        for number, edge in self._edges.items():
            if not edge.reacts_to_silence:
                continue
            since = self._last_active.get(number, now)
            if edge.idle_timeout is not None:
                times.append(since + edge.idle_timeout)
            if edge.progress_timeout is not None and self._valve.watermark_of(("source", number)) > MIN_TIMESTAMP:
                times.append(max(since + edge.progress_timeout, now + 1))
        return min((time for time in times if time > now), default=None)

    def held_by(self) -> list[int] | None:
        """Return the [vertex, subtask] that holds the watermark back, or None if no subtask does.

        The subtask is -1 for a source that has reported nothing.
        """
        valve = self._valve
        counted = [channel for channel in valve.channels if not valve.is_idle_channel(channel)]
        lowest = min(counted, key=valve.watermark_of, default=None)
        if lowest is None or valve.watermark_of(lowest) == MAX_WATERMARK:
            return None
        if not isinstance(lowest, tuple):
            assert isinstance(lowest, int)
            return [sender_of_edge(edge_of_channel(lowest)), subtask_of_channel(lowest)]
        edge = lowest[1]
        partitions = {
            subtask_of_channel(code): MIN_TIMESTAMP if channel.watermark is None else channel.watermark
            for code, channel in self._channels.items()
            if edge_of_channel(code) == edge and not channel.idle and channel.affects_event_time
        }
        return [sender_of_edge(edge), min(partitions, key=partitions.__getitem__, default=-1)]

    @property
    def current_watermark(self) -> int:
        return self._valve.current_watermark

    @property
    def is_idle(self) -> bool:
        return self._valve.is_idle

    def snapshot(self) -> Any:
        return {
            "valve": self._valve.snapshot(),
            "last_active": dict(self._last_active),
            "last_said": dict(self._last_watermark),
        }

    def restore(self, state: Any, *, repeat_status: bool = False) -> None:
        """Restore a snapshot. With ``repeat_status``, emit an idle status again."""
        self._valve.restore(state["valve"], repeat_status=repeat_status)
        self._last_active = dict(state["last_active"])
        self._last_watermark = dict(state["last_said"])

    def close(self) -> None:
        self._spool.close()
        self._channels = {}
        self.any_barrier = False
