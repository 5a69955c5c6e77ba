from __future__ import annotations

from pillarbox import KeyedProcessFunction, ValueStateDescriptor, WatermarkStrategy
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox.testing import ProgramTestHarness

TIMEOUT = 10_000


class Silence(KeyedProcessFunction):
    def open(self, runtime_context):
        self.at = runtime_context.get_state(ValueStateDescriptor("at"))

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        if self.at.value() is not None:
            timers.delete_processing_time_timer(self.at.value())
        self.at.update(timers.current_processing_time() + TIMEOUT)
        timers.register_processing_time_timer(self.at.value())
        yield value, "came"

    def on_timer(self, timestamp, ctx):
        self.at.clear()
        yield ctx.get_current_key(), "silent"


class Sets(KeyedProcessFunction):
    """Sets event-time and processing-time timers, and emits a result when they fire."""

    def process_element(self, value, ctx):
        _, at, times = value
        for time in times:
            ctx.timer_service().register_processing_time_timer(time)
        yield "record", at

    def on_timer(self, timestamp, ctx):
        yield "timer", timestamp, ctx.timer_service().current_watermark()


def timed(env, records):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[1])
    return records.assign_timestamps_and_watermarks(strategy).key_by(lambda value: value[0]).process(Sets())


def test_a_key_that_sends_in_every_epoch_is_never_silent():
    with ProgramTestHarness(lambda env, keys: keys.key_by(lambda key: key).process(Silence())) as harness:
        for epoch in range(6):
            harness.set_processing_time(15_000 * epoch)
            harness.push("keys", *["busy"] * 15, *(["quiet"] if epoch == 0 else []))
            assert harness.run_epoch()["output"] == [
                *[("busy", "came")] * 15,
                *([("quiet", "came")] if epoch == 0 else []),
                *([("quiet", "silent")] if epoch == 1 else []),
            ]
        harness.set_processing_time(90_000)
        assert harness.run_epoch()["output"] == [("busy", "silent")]


def test_they_fire_by_time_after_records_and_watermarks_also_those_set_within_the_epoch():
    with ProgramTestHarness(timed) as harness:
        harness.push("records", ("a", 1, [50, 30]), ("b", 2, [40]))
        harness.run_epoch()
        harness.set_processing_time(100)
        harness.push("records", ("a", 5, [35, 200]), ("c", 9, [45]))
        assert harness.run_epoch()["output"] == [
            ("record", 5),
            ("record", 9),
            *(("timer", time, 8) for time in (30, 35, 40, 45, 50)),
        ]
        harness.set_processing_time(200)
        assert harness.run_epoch()["output"] == [("timer", 200, 8)]


def test_they_fire_before_the_end_of_event_time():
    with ProgramTestHarness(timed) as harness:
        harness.push("records", ("a", 1, [50]))
        harness.run_epoch()
        harness.set_processing_time(100)
        harness.push("records", ("a", 7, [70, 300]))
        output = harness.end_input()["output"]
    assert output[0] == ("record", 7)
    assert [record[:2] for record in output[1:]] == [("timer", 50), ("timer", 70)]
    assert all(record[2] < MAX_WATERMARK for record in output[1:])


def test_the_beginning_of_an_epoch_does_not_go_back_with_the_clock():
    with ProgramTestHarness(timed) as harness:
        harness.set_processing_time(100)
        harness.push("records", ("a", 1, [120]))
        harness.run_epoch()
        harness.set_processing_time(60)
        harness.push("records", ("a", 2, [80, 110]))
        assert harness.run_epoch()["output"] == [("record", 2), ("timer", 80, 1)]
        harness.set_processing_time(115)
        assert harness.run_epoch()["output"] == [("timer", 110, 1)]
