from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from pillarbox import KeyedProcessFunction, ListStateDescriptor, StreamExecutionEnvironment, WatermarkStrategy

ASKED = logging.getLogger("asked")


class Timers(KeyedProcessFunction):
    """Sets timers for each record. Timers that fire when event time ends set further timers."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        # One that may fire before the end or not at all, and one that fires while requests are waited for, if any does.
        for delay in (0, 20):
            timers.register_processing_time_timer(timers.current_processing_time() + delay)
        timers.register_event_time_timer(value)
        yield "element", value, 0

    def on_timer(self, timestamp, ctx):
        timers = ctx.timer_service()
        if ctx.time_domain().name == "EVENT_TIME":
            round_number = (timestamp - ctx.get_current_key()) // 100
            if round_number < 3:
                timers.register_event_time_timer(timestamp + 100)
            timers.register_processing_time_timer(timers.current_processing_time())
            yield "event time", ctx.get_current_key(), round_number
        else:
            yield "processing time", ctx.get_current_key(), timestamp


async def ask(value):
    ASKED.info("%r", value)
    await asyncio.sleep(0.02)
    return value


class AtTheEnd(KeyedProcessFunction):
    def open(self, runtime_context):
        self.values = runtime_context.get_list_state(ListStateDescriptor("values"))

    def process_element(self, value, ctx):
        self.values.add(value)
        ctx.timer_service().register_event_time_timer(2**62)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), list(self.values)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("on_barrier", ["drain", "carry"])
@pytest.mark.parametrize("ordered", [True, False])
def test_timers_and_requests_at_the_end_of_a_collection(caplog, parallelism, on_barrier, ordered):
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    by_value = WatermarkStrategy.for_bounded_out_of_orderness(1000).with_timestamp_assigner(lambda value: value)
    stream = env.from_collection([1, 2, 3]).assign_timestamps_and_watermarks(by_value)
    timers = stream.key_by(lambda value: value).process(Timers())
    answers = timers.map_async(ask, timeout="1 minute", on_barrier=on_barrier, ordered=ordered, capacity=2)
    with caplog.at_level(logging.INFO, "asked"):
        results = answers.key_by(lambda value: value[0]).process(AtTheEnd()).execute_and_collect()
    values = dict(results)
    assert len(values) == len(results), "event time ended twice for a key"
    answered = [value for elements in values.values() for value in elements]
    asked = [record.getMessage() for record in caplog.records if record.name == "asked"]
    assert Counter(map(repr, answered)) == Counter(asked)
    assert sorted(values["element"]) == [("element", key, 0) for key in (1, 2, 3)]
    assert sorted(values["event time"]) == [("event time", key, n) for key in (1, 2, 3) for n in range(4)]
    assert set(values) <= {"element", "event time", "processing time"}
