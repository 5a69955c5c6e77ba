from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    MonotoneWatermarkOutput,
    NoWatermarksGenerator,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarksWithIdleness,
)


class Recorder(WatermarkOutput):
    def __init__(self):
        self.said = []

    def emit_watermark(self, timestamp_ms):
        self.said.append(timestamp_ms)

    def mark_idle(self):
        self.said.append("idle")

    def mark_active(self):
        self.said.append("active")


class Sink:
    def __init__(self):
        self.got = []

    def process_watermark(self, timestamp):
        self.got.append(timestamp)

    def process_status(self, idle):
        self.got.append("idle" if idle else "active")


def test_bounded_out_of_orderness_emits_periodically_behind_the_largest_timestamp():
    output = Recorder()
    generator = BoundedOutOfOrdernessWatermarks("10 ms")
    generator.on_periodic_emit(output)
    assert output.said == []  # nothing before the first event
    generator.on_event("a", 100, output)
    assert output.said == []  # and nothing but periodically
    generator.on_periodic_emit(output)
    generator.on_event("b", 50, output)
    generator.on_periodic_emit(output)
    generator.on_batch(200, output)
    generator.on_batch(150, output)
    generator.on_periodic_emit(output)
    assert output.said == [89, 89, 189]


def test_ascending_timestamps_have_no_delay():
    output = Recorder()
    generator = AscendingTimestampsWatermarks()
    generator.on_event("a", 0, output)
    generator.on_periodic_emit(output)
    generator.on_event("a", -5, output)
    generator.on_event("a", MAX_WATERMARK, output)
    generator.on_periodic_emit(output)
    assert output.said == [-1, MAX_WATERMARK - 1]


def test_records_without_a_timestamp_make_no_watermark():
    output = Recorder()
    generator = BoundedOutOfOrdernessWatermarks(5)
    generator.on_event("a", MIN_TIMESTAMP, output)
    generator.on_periodic_emit(output)
    generator.on_event("a", MIN_TIMESTAMP + 6, output)
    generator.on_periodic_emit(output)  # would be below the smallest timestamp, or equal to it
    assert output.said == []
    generator.on_event("a", MIN_TIMESTAMP + 7, output)
    generator.on_periodic_emit(output)
    assert output.said == [MIN_TIMESTAMP + 1]


@given(
    st.integers(0, 1000),
    st.lists(st.one_of(st.integers(-(2**62), 2**62), st.lists(st.integers(-100, 100)), st.none())),
)
def test_bounded_out_of_orderness_is_what_its_definition_says(delay, steps):
    output = Recorder()
    generator = BoundedOutOfOrdernessWatermarks(delay)
    seen: list[int] = []
    expected = []
    for step in steps:
        if step is None:
            generator.on_periodic_emit(output)
            if seen:
                expected.append(max(seen) - delay - 1)
        elif isinstance(step, int):
            generator.on_event(None, step, output)
            seen.append(step)
        elif step:
            generator.on_batch(max(step), output)
            seen.extend(step)
    assert output.said == expected


def test_no_watermarks_says_nothing():
    output = Recorder()
    generator = NoWatermarksGenerator()
    generator.on_event("a", 1, output)
    generator.on_batch(2, output)
    generator.on_periodic_emit(output)
    assert output.said == []


def test_the_built_in_generators_are_batchable_and_own_ones_are_not():
    class Punctuated(WatermarkGenerator):
        def on_event(self, event, timestamp, output):
            if event == "end":
                output.emit_watermark(timestamp)

        def on_periodic_emit(self, output):
            pass

    assert BoundedOutOfOrdernessWatermarks(1).batchable
    assert AscendingTimestampsWatermarks().batchable
    assert NoWatermarksGenerator().batchable
    own = Punctuated()
    assert not own.batchable
    assert not WatermarksWithIdleness(own, 1, lambda: 0).batchable
    assert WatermarksWithIdleness(NoWatermarksGenerator(), 1, lambda: 0).batchable
    with pytest.raises(NotImplementedError, match="Punctuated is batchable"):
        own.on_batch(1, Recorder())
    output = Recorder()
    own.on_event("begin", 1, output)
    own.on_event("end", 2, output)
    assert output.said == [2]


class TestIdleness:
    """Flink's WatermarksWithIdleness."""

    def setup_method(self):
        self.now = 1000
        self.output = Recorder()
        self.generator = WatermarksWithIdleness(AscendingTimestampsWatermarks(), "100 ms", lambda: self.now)

    def emit_at(self, now):
        self.now = now
        self.generator.on_periodic_emit(self.output)

    def test_idle_after_the_timeout_and_reported_once(self):
        self.generator.on_event("a", 10, self.output)
        self.emit_at(1000)  # there was an event
        self.emit_at(5000)  # the first look without one: the countdown starts here
        self.emit_at(5100)  # exactly the timeout is not more than it
        assert self.output.said == [9, 9, 9]
        self.emit_at(5101)
        self.emit_at(9999)
        assert self.output.said == [9, 9, 9, "idle"]

    @pytest.mark.parametrize("batch", [False, True])
    def test_the_next_event_ends_it_even_a_late_one(self, batch):
        self.generator.on_event("a", 10, self.output)
        self.emit_at(1000)
        self.emit_at(1001)
        self.emit_at(1200)
        self.output.said.clear()
        if batch:
            self.generator.on_batch(5, self.output)
            self.generator.on_batch(6, self.output)
        else:
            self.generator.on_event("late", 5, self.output)
            self.generator.on_event("late", 6, self.output)
        assert self.output.said == ["active"]
        self.emit_at(1300)
        self.emit_at(1400)
        self.emit_at(1500)
        assert self.output.said == ["active", 9, 9, 9]
        self.emit_at(1501)
        assert self.output.said == ["active", 9, 9, 9, "idle"]

    def test_an_event_between_two_looks_starts_the_countdown_anew(self):
        self.emit_at(1000)
        self.generator.on_batch(10, self.output)
        self.emit_at(1101)
        self.emit_at(1102)
        self.emit_at(1202)
        assert "idle" not in self.output.said
        self.emit_at(1203)
        assert self.output.said[-1] == "idle"

    def test_a_stream_without_any_event_becomes_idle(self):
        self.emit_at(0)  # 0 is a time like any other
        self.emit_at(101)
        assert self.output.said == ["idle"]

    def test_it_tells_when_its_time_will_be_up(self):
        assert self.generator.idle_at is None
        self.generator.on_event("a", 10, self.output)
        self.emit_at(1000)
        assert self.generator.idle_at is None
        self.emit_at(5000)
        assert self.generator.idle_at == 5101
        self.emit_at(5101)
        assert self.generator.idle_at is None
        assert self.output.said[-1] == "idle"

    def test_the_generator_sees_all_events(self):
        self.generator.on_event("a", 10, self.output)
        self.generator.on_batch(20, self.output)
        self.emit_at(1000)
        assert self.output.said == [19]

    @pytest.mark.parametrize("timeout", [0, -1, "soon"])
    def test_the_timeout_is_positive(self, timeout):
        with pytest.raises(ValueError, match=r"idle timeout|duration"):
            WatermarksWithIdleness(NoWatermarksGenerator(), timeout, lambda: 0)


class TestMonotoneOutput:
    def test_watermarks_only_go_up(self):
        sink = Sink()
        output = MonotoneWatermarkOutput(sink)
        for timestamp in (MIN_TIMESTAMP, 5, 5, 3, 6):
            output.emit_watermark(timestamp)
        assert sink.got == [5, 6]

    @pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP - 1, MAX_WATERMARK + 1, True, 1.0, None])
    def test_values_that_are_no_watermarks(self, timestamp):
        sink = Sink()
        with pytest.raises(ValueError, match=f"{timestamp} .* is not a watermark: "):
            MonotoneWatermarkOutput(sink).emit_watermark(timestamp)
        assert sink.got == []

    def test_statuses_are_said_when_they_change_and_a_watermark_ends_idleness(self):
        sink = Sink()
        output = MonotoneWatermarkOutput(sink)
        output.mark_active()
        output.mark_idle()
        output.mark_idle()
        assert output.is_idle
        output.emit_watermark(5)
        assert not output.is_idle
        output.mark_idle()
        output.emit_watermark(5)  # no new one
        output.mark_active()
        output.mark_active()
        assert sink.got == ["idle", "active", 5, "idle", "active"]

    @pytest.mark.parametrize("idle", [True, False])
    def test_a_sink_that_may_know_any_status_is_told_the_first(self, idle):
        sink = Sink()
        output = MonotoneWatermarkOutput(sink, idle=None)
        for _ in range(2):
            output.mark_idle() if idle else output.mark_active()
        assert sink.got == ["idle" if idle else "active"]
        sink = Sink()
        MonotoneWatermarkOutput(sink, idle=None).emit_watermark(5)
        assert sink.got == ["active", 5]

    @given(st.lists(st.one_of(st.integers(-50, 50), st.sampled_from(["idle", "active"]))))
    def test_watermarks_and_statuses_are_emitted_in_order(self, statuses_and_marks):
        sink = Sink()
        output = MonotoneWatermarkOutput(sink)
        for word in statuses_and_marks:
            if word == "idle":
                output.mark_idle()
            elif word == "active":
                output.mark_active()
            else:
                output.emit_watermark(word)
        watermarks = [w for w in sink.got if isinstance(w, int)]
        statuses = [w for w in sink.got if isinstance(w, str)]
        assert watermarks == sorted(set(watermarks))
        assert max(watermarks, default=None) == max((w for w in statuses_and_marks if isinstance(w, int)), default=None)
        assert statuses == (["idle", "active"] * len(statuses_and_marks))[: len(statuses)]
        # No watermark is emitted while the stream is idle.
        idle = False
        for word in sink.got:
            idle = word == "idle" if isinstance(word, str) else idle
            assert not (idle and isinstance(word, int))
