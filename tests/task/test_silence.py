"""Silent sources. Their watermark advances with the clock, then they become idle, even in a repeated epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._elements.buffers import Buffer, channel_code, encode
from pillarbox._elements.elements import Barrier, Element, Watermark
from pillarbox._elements.records import Records
from pillarbox._task.network.input_gate import InputGate
from pillarbox._task.vertex import InputEdge
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

KNOWN = 9


class Sink:
    def __init__(self):
        self.got = []

    def process_watermark(self, timestamp):
        self.got.append(timestamp)

    def process_status(self, idle):
        self.got.append("idle" if idle else "active")


class Sources:
    """An input gate that reads sources, epoch by epoch."""

    def __init__(self, *edges):
        self.edges = edges
        self.gate = InputGate("windows", list(edges))
        self.epoch = 0

    def __call__(self, now, *watermarks):
        self.epoch += 1
        sink = Sink()
        self.gate.begin_epoch(self.epoch)
        for edge, watermark in zip(self.edges, watermarks):
            elements: list[Element] = [] if watermark is None else [Records([1]), Watermark(watermark)]
            number = channel_code(edge.id, 0)
            for seq, element in enumerate([*elements, Barrier(self.epoch)]):
                for channel, arrived in self.gate.receive(Buffer(1, number, seq, encode(element))):
                    if isinstance(arrived, Watermark):
                        self.gate.watermark(channel, arrived.timestamp, sink)
        self.gate.aligned()
        self.gate.advance(now, sink)
        return sink.got

    def again(self):
        other = Sources(*self.edges)
        other.gate.restore(self.gate.snapshot())
        other.epoch = self.epoch
        return other


def source(number=0, *, idle=None, progress=None):
    return InputEdge(number, 0, idle, progress_timeout=progress)


def test_the_watermark_of_a_silent_source_goes_on_with_the_clock():
    run = Sources(source(progress=100))
    assert run(1000, 5) == [5]
    assert run.gate.next_wake_up(1000) == 1100
    assert run(1099) == []
    assert run(1100) == []  # the timeout has passed, and nothing of the clock behind it
    assert run(1101) == [6]
    assert run.gate.next_wake_up(1101) == 1102  # in every epoch
    assert run(1500) == [405]
    assert run(1600, 300) == []  # late: never back
    assert run(1650) == []
    assert run(1710) == [415]  # silence counts anew, from where event time was
    assert run(1800, 1000) == [1000]
    assert run.gate.next_wake_up(1800) == 1900


def test_a_source_without_a_watermark_has_none_to_go_on_from():
    run = Sources(source(progress=100))
    assert run(1000) == run(5000) == run(9000, MIN_TIMESTAMP) == run(20_000) == []
    assert run.gate.next_wake_up(20_000) is None


def test_silence_is_counted_over_a_restart():
    run = Sources(source(progress=100))
    run(1000, 5)
    run(1050)
    assert run.again()(1110) == [15]
    run(1200)
    assert run.again()(1300) == run(1300) == [205]


def test_each_source_counts_by_itself():
    run = Sources(source(0, progress=100), source(1, progress=300), source(2))
    assert run(1000, 10, 20, 500) == [10]
    assert run(1105, None, None, 500) == [15]
    assert run(1200, None, None, None) == [20]  # the other one holds it
    assert run(1307, None, None, None) == [27]
    assert run(1900, None, None, None) == [500]  # a source without a watermark does not advance


def test_the_other_channels_are_as_ever():
    run = Sources(source(progress=100), InputEdge(KNOWN, 1))
    run(1000, 10)
    sink, channel = Sink(), channel_code(KNOWN, 0)
    run.gate.begin_epoch(2)
    run.gate.watermark(channel, 50, sink)
    assert sink.got == [10]
    assert run(1120) == [30]
    assert run(1900) == [50]


def test_an_idle_source_goes_on_with_the_clock_and_holds_nobody_back():
    run = Sources(source(0, idle=50, progress=100), source(1))
    assert run(1000, 10, 20) == [10]
    assert run(1060, None, None) == [20]  # idle
    assert run(1200, None, 40) == [40]  # not held back, although the clock is at 110
    assert run(1300, None, 50) == [50]
    assert run(1310, 300, 60) == [60]  # back again


def test_the_clock_advances_if_all_sources_are_idle():
    run = Sources(source(0, idle=50, progress=100), source(1, idle=150, progress=400))
    assert run(1000, 10, 20) == [10]
    assert run(1060) == [20]
    assert run(1120) == []  # 30, but the other one is not idle yet, and is at 20
    assert run(1150) == ["idle", "active", 60, "idle"]
    assert run(1160) == ["active", 70, "idle"]
    assert run(1170, None, 65) == ["active"]  # and behind: it is waited for
    assert run(1180, None, 90) == [90]


def test_the_clock_never_ends_event_time():
    run = Sources(source(progress=1))
    run(0, MAX_WATERMARK - 5)
    assert run(100) == [MAX_WATERMARK - 1]


@dataclass
class Source:
    """The model of a source without an idle timeout."""

    timeout: int | None
    last: int = MIN_TIMESTAMP
    spoke_at: int | None = None
    base: int = MIN_TIMESTAMP

    def hear(self, now, watermark):
        if watermark is not None:
            self.last = max(self.last, watermark)
            self.base, self.spoke_at = self.last, now
        elif self.timeout is not None and self.spoke_at is not None and self.base > MIN_TIMESTAMP:
            self.last = max(self.last, self.base + max(0, now - self.spoke_at - self.timeout))


TIMEOUTS = st.none() | st.integers(1, 60)


@given(data=st.data(), count=st.integers(1, 3), idle=st.booleans())
def test_silence_does_what_the_model_does_and_the_same_again(data, count, idle):
    edges = [source(n, idle=data.draw(TIMEOUTS) if idle else None, progress=data.draw(TIMEOUTS)) for n in range(count)]
    model = [Source(edge.progress_timeout) for edge in edges]
    run = Sources(*edges)
    now, event_time = 1000, MIN_TIMESTAMP
    spoken = st.none() | st.none() | st.integers(-50, 300)
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.integers(0, 70))
        watermarks_in = [data.draw(spoken) for _ in edges]
        before = run.again()
        got = run(now, *watermarks_in)
        # As after a failure, or in another attempt.
        assert before(now, *watermarks_in) == got
        assert before.gate.snapshot() == run.gate.snapshot()
        watermarks = [element for element in got if isinstance(element, int)]
        assert watermarks == sorted(set(watermarks))
        assert not watermarks or watermarks[0] > event_time
        event_time = run.gate.current_watermark
        for source_, watermark in zip(model, watermarks_in):
            source_.hear(now, watermark)
        if not idle:
            assert event_time == min(source_.last for source_ in model)
        if data.draw(st.booleans()):
            run = before


@pytest.mark.parametrize("progress", [None, 10])
def test_sources_are_woken_for_what_is_to_come(progress):
    run = Sources(source(0, idle=30, progress=progress), source(1, idle=70))
    run(1000, 1, 2)
    wake_up = run.gate.next_wake_up(1000)
    assert wake_up is not None
    assert run.again()(wake_up - 1) == []
    assert wake_up == (1030 if progress is None else 1010)
