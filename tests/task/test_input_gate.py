"""The input gate: order, alignment, and watermarks of channels and of source partitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._elements.buffers import Buffer, channel_code, encode
from pillarbox._elements.elements import Barrier, EndOfData, Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._errors import ExchangeError
from pillarbox._task.network import spool
from pillarbox._task.network.input_gate import InputGate
from pillarbox._task.vertex import InputEdge
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox._time.valve import StatusWatermarkValve

SOURCE, KNOWN = 0, 1


class Sink:
    def __init__(self):
        self.got = []

    def process_watermark(self, timestamp):
        self.got.append(timestamp)

    def process_status(self, idle):
        self.got.append("idle" if idle else "active")

    def take(self):
        got, self.got = self.got, []
        return got


def gate_of(*edges, epoch=1):
    gate = InputGate("sum", list(edges) or [InputEdge(SOURCE, 0)])
    gate.begin_epoch(epoch)
    return gate


def share(channel, *elements, barrier=True):
    elements += (Barrier(1),) if barrier else ()
    return [Buffer(5, channel, seq, encode(element)) for seq, element in enumerate(elements)]


def received(gate, buffers):
    got: dict[int, list[Any]] = {}
    for buffer in buffers:
        for channel, element in gate.receive(buffer):
            got.setdefault(channel, []).append(element.values[0] if isinstance(element, Records) else element)
    return got


def source(partition):
    return channel_code(SOURCE, partition)


CHANNELS = st.dictionaries(st.integers(0, 4), st.integers(0, 6), min_size=1)


@given(CHANNELS.flatmap(lambda counts: st.tuples(st.just(counts), st.randoms())))
def test_any_order_is_put_right(case):
    counts, order = case
    buffers = [
        buffer
        for partition, count in counts.items()
        for buffer in share(source(partition), *[Records([(partition, n)]) for n in range(count)])
    ]
    order.shuffle(buffers)
    gate = gate_of()
    got = received(gate, buffers)
    assert got == {source(p): [(p, n) for n in range(count)] for p, count in counts.items() if count}
    assert gate.aligned() is False


def test_beyond_the_memory_bound_buffers_wait_in_a_file(monkeypatch):
    monkeypatch.setattr(spool, "_MEMORY_BOUND", 10_000)
    buffers = share(source(0), *[Records([f"{n}-" * 1000]) for n in range(50)])
    gate = gate_of()
    assert received(gate, reversed(buffers[1:])) == {}
    assert gate._spool._file._rolled
    got = received(gate, buffers[:1])
    assert [value[:2] for value in got[source(0)]] == [f"{n}-"[:2] for n in range(50)]
    gate.aligned()
    assert gate._spool._file is None


def refused(gate, buffers):
    with pytest.raises(ExchangeError) as caught:
        received(gate, buffers)
        gate.aligned()
    return str(caught.value)


@pytest.mark.parametrize("epoch", [1, 12])
def test_missing_and_unknown_inputs_are_named(epoch):
    channel = source(3)
    good = share(channel, Records([1]), Records([2]), Records([3]))

    def text(buffers):
        message = refused(gate_of(epoch=epoch), buffers)
        assert f"'sum', epoch {epoch}:" in message and str(channel) in message
        return message

    assert "buffer 1 of channel" in text(good[:1] + good[2:]) and "missing, but 2 later" in text(good[:1] + good[2:])
    assert "no barrier from channel" in text(good[:-1])
    assert "arrived twice" in text([good[0], good[0]])
    assert "arrived twice" in text([good[0], good[2], good[2]])
    late = Buffer(5, channel, 4, encode(Records([4])))
    assert "sent data after its barrier" in text([*good, late])
    assert "sent data after its barrier" in text([late, *good])
    assert "sent data after its barrier" in text([*good, Buffer(5, channel, 4, encode(Barrier(1)))])


def test_a_stranger_is_refused():
    assert "unknown channel" in refused(gate_of(), share(channel_code(9, 0)))


def test_c3_alignment():
    gate = gate_of(InputEdge(KNOWN, 2))
    first, second = (channel_code(KNOWN, n) for n in range(2))
    assert not gate.any_barrier
    received(gate, share(first))
    assert gate.any_barrier
    assert "any_barrier" in vars(gate), "it is known, and nobody asks each channel for each buffer"
    received(gate, share(second, EndOfData()))
    assert gate.aligned() is False
    gate.begin_epoch(2)
    assert not gate.any_barrier
    received(gate, share(first, EndOfData()) + share(second, EndOfData()))
    assert gate.aligned() is True


def test_an_epoch_without_channels():
    assert gate_of().aligned() is False


# -- watermarks of known channels: Flink's valve --


class KnownChannels:
    """An input gate that reads a vertex's subtasks, epoch by epoch."""

    def __init__(self):
        self.gate, self.epoch = InputGate("sum", [InputEdge(KNOWN, 3)]), 0

    def __call__(self, elements):
        self.epoch += 1
        self.gate.begin_epoch(self.epoch)
        sink, numbers = Sink(), [0, 0, 0]
        for subtask, element in [*elements, *((subtask, Barrier(self.epoch)) for subtask in range(3))]:
            buffer = Buffer(5, channel_code(KNOWN, subtask), numbers[subtask], encode(element))
            numbers[subtask] += 1
            for channel, arrived in self.gate.receive(buffer):
                if isinstance(arrived, Watermark):
                    self.gate.watermark(channel, arrived.timestamp, sink)
                elif isinstance(arrived, WatermarkStatus):
                    self.gate.status(channel, arrived.idle)
        self.gate.aligned()
        self.gate.advance(0, sink)
        return sink.got

    def again(self):
        other = KnownChannels()
        other.gate.restore(self.gate.snapshot())
        other.epoch = self.epoch
        return other


WATERMARKS = st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5).map(Watermark)))


@given(st.lists(WATERMARKS, max_size=4))
def test_watermarks_of_known_channels_are_the_valves(epochs):
    run = KnownChannels()
    valve = StatusWatermarkValve([channel_code(KNOWN, n) for n in range(3)])
    for epoch in epochs:
        expected = Sink()
        for subtask, element in epoch:
            valve.input_watermark(channel_code(KNOWN, subtask), element.timestamp, expected)
        assert run(epoch) == expected.got
        run = run.again()


ELEMENTS = st.lists(st.integers(-5, 5).map(Watermark) | st.booleans().map(WatermarkStatus), max_size=5)


@given(st.lists(st.tuples(ELEMENTS, ELEMENTS, ELEMENTS), max_size=5), st.data())
def test_event_time_does_not_depend_on_which_channel_comes_first(epochs, data):
    in_order, mixed_order = KnownChannels(), KnownChannels()
    for channels in epochs:
        left = [list(channel) for channel in channels]
        mixed = []
        while any(left):
            subtask = data.draw(st.sampled_from([n for n in range(3) if left[n]]))
            mixed.append((subtask, left[subtask].pop(0)))
        in_order([(subtask, element) for subtask, elements in enumerate(channels) for element in elements])
        mixed_order(mixed)
        assert in_order.gate.snapshot() == mixed_order.gate.snapshot()
        if data.draw(st.booleans()):
            mixed_order = mixed_order.again()


def test_a_channel_that_is_active_again_is_not_overtaken_within_an_epoch():
    """In Flink the record is late if another channel's watermark arrives first."""
    run = KnownChannels()
    idle, active = WatermarkStatus(True), WatermarkStatus(False)
    assert run([(0, Watermark(10)), (1, Watermark(20)), (2, Watermark(20)), (0, idle)]) == [10, 20]
    assert run([(1, Watermark(40)), (2, Watermark(50)), (0, active), (0, Watermark(30))]) == [30]
    assert run([(0, idle), (1, Watermark(45))]) == [45]
    # Behind the others, it is waited for no longer; it has caught up by the end of the next epoch.
    assert run([(0, active), (0, Watermark(44)), (1, Watermark(60)), (2, Watermark(70))]) == [60]
    assert run([(1, Watermark(80)), (2, Watermark(80)), (0, Watermark(61))]) == [61]


# -- watermarks of source partitions --


class Sourced:
    """An input gate that reads a source, epoch by epoch."""

    def __init__(self, idle_timeout=None):
        self.gate = InputGate("sum", [InputEdge(SOURCE, 0, idle_timeout)])
        self.sink = Sink()
        self.epoch = 0

    def __call__(self, *partitions, now=0):
        self.epoch += 1
        self.gate.begin_epoch(self.epoch)
        for number, elements in enumerate(partitions):
            for buffer in share(source(number), *elements):
                for channel, element in self.gate.receive(buffer):
                    if isinstance(element, Watermark):
                        self.gate.watermark(channel, element.timestamp, self.sink)
                    elif isinstance(element, WatermarkStatus):
                        self.gate.status(channel, element.idle)
        self.gate.aligned()
        assert self.sink.got == []  # within an epoch, no partition speaks for the source
        self.gate.advance(now, self.sink)
        return self.sink.take()


def records(*watermarks):
    return [Records([1]), *map(Watermark, watermarks)]


def test_the_least_of_an_epochs_partitions_counts():
    run = Sourced()
    assert run(records(5, 9), records(7)) == [7]
    assert run(records(6), records(20)) == []  # never back
    assert run(records(30)) == [30]  # as many partitions as Spark likes
    assert run(records(40), records(MIN_TIMESTAMP)) == []
    assert run(records(40), records()) == []
    assert run(records(50), [], []) == [50]  # channels without records do not count
    assert run(records(60), [*records(55), WatermarkStatus(True)]) == [60]  # nor do idle channels
    assert run() == []
    assert run([Watermark(70)]) == [70]
    assert run.gate.current_watermark == 70


def test_a_silent_source_becomes_idle_after_its_timeout():
    run = Sourced(idle_timeout=100)
    assert run(records(5), now=1000) == [5]
    assert run.gate.next_wake_up(1000) == 1100
    assert run(now=1099) == []
    assert run(now=1100) == ["idle"]
    assert run(now=5000) == []
    assert run.gate.next_wake_up(5000) is None
    assert run(records(8), now=6000) == ["active", 8]
    assert run.gate.next_wake_up(6000) == 6100


def test_a_source_that_never_spoke_becomes_idle_too():
    run = Sourced(idle_timeout=100)
    assert run(now=1000) == []
    assert run.gate.next_wake_up(1000) == 1100
    assert run(now=1100) == ["idle"]


def test_without_timeout_a_silent_source_is_waited_for():
    gate, sink = InputGate("sum", [InputEdge(SOURCE, 0), InputEdge(KNOWN, 0, 10)]), Sink()
    gate.begin_epoch(1)
    for buffer in share(source(0), *records(5)):
        for channel, element in gate.receive(buffer):
            if isinstance(element, Watermark):
                gate.watermark(channel, element.timestamp, sink)
    gate.advance(0, sink)
    assert sink.take() == []
    gate.begin_epoch(2)
    gate.advance(10, sink)
    assert sink.take() == [5]  # the other source is idle now, this one is not


def test_watermarks_and_silence_are_restored():
    run = Sourced(idle_timeout=100)
    run(records(5), now=1000)
    again = Sourced(idle_timeout=100)
    again.gate.restore(run.gate.snapshot())
    assert again.gate.current_watermark == 5
    assert again(now=1099) == []
    assert again(now=1100) == ["idle"]
    assert again(records(4), now=1110) == ["active"]


def test_a_source_whose_partitions_all_said_idle_is_idle_at_once():
    run = Sourced()
    idle = WatermarkStatus(True)
    assert run([*records(50), idle], [*records(40), idle], []) == [50, "idle"]
    assert run([*records(45), idle]) == []  # not above the emitted watermark
    assert run([*records(60), idle]) == ["active", 60, "idle"]
    assert run([idle]) == []
    assert run() == []
    assert run([*records(55)]) == ["active"]
    assert run([*records(70), idle], records(65)) == [65]
    assert run([*records(), idle]) == ["idle"]


def test_an_idle_source_holds_back_no_other():
    gate, sink = InputGate("sum", [InputEdge(SOURCE, 0), InputEdge(KNOWN, 0)]), Sink()
    gate.begin_epoch(1)
    for buffer in (*share(source(0), Records([1]), WatermarkStatus(True)), *share(channel_code(KNOWN, 0), *records(9))):
        for channel, element in gate.receive(buffer):
            if isinstance(element, Watermark):
                gate.watermark(channel, element.timestamp, sink)
            elif isinstance(element, WatermarkStatus):
                gate.status(channel, element.idle)
    gate.advance(0, sink)
    assert sink.take() == [9]
