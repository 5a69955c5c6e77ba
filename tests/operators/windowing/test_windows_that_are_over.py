"""Ended windows leave no row, no timer, and a short log.

With ``PILLARBOX_LONG``, there are a thousand windows.
"""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from pillarbox._state.log import limits
from tests.operators.windowing.test_trigger_model import LONG, Budget
from tests.operators.windowing.windows import Contents, Number, open_windows

SLACK, CHUNK = 20_000, 10_000
TEN = TumblingEventTimeWindows.of(10)
SLIDING = SlidingEventTimeWindows.of(30, 10)
SESSIONS = EventTimeSessionWindows.with_gap(4)


class Notes(ProcessWindowFunction):
    states = ValueStateDescriptor("value"), ListStateDescriptor("list"), MapStateDescriptor("map")

    def process(self, key, context, elements):
        store = context.window_state()
        value, many, by_number = (store.get_state(state) for state in self.states)
        value.update("seen")
        many.add(len(list(elements)))
        by_number.put(context.window().start, "here")
        total = context.global_state().get_state(ValueStateDescriptor("total"))
        total.update((total.value() or 0) + 1)
        if total.value() == 2:
            total.clear()
        yield key, tuple(context.window()), list(many.get())

    def clear(self, context):
        for state in self.states:
            context.window_state().get_state(state).clear()


def of(assigner: Any, function: Any = None, trigger: Any = None, evictor: Any = None, lateness: int = 0) -> Any:
    def build(stream: Any) -> Any:
        windows = stream.window(assigner)
        windows = windows if trigger is None else windows.trigger(trigger)
        windows = windows if evictor is None else windows.evictor(evictor)
        windows = windows.allowed_lateness(lateness) if lateness else windows
        return windows.aggregate(function) if isinstance(function, Number) else windows.process(function or Contents())

    return build


PROGRAMS: dict[str, Any] = {
    "tumbling": of(TEN),
    "tumbling, folded": of(TEN, Number(), lateness=15),
    "tumbling, with state": of(TEN, Notes(), lateness=15),
    "tumbling, evicted": of(TEN, Number(), evictor=CountEvictor.of(1, True)),
    "tumbling, counted": of(TEN, Number(), CountTrigger.of(2)),
    "tumbling, purged": of(TEN, None, PurgingTrigger.of(CountTrigger.of(2))),
    "tumbling, by differences": of(TEN, None, DeltaTrigger.of(0, lambda first, other: other[1] - first[1])),
    "tumbling, continuously": of(TEN, Notes(), ContinuousEventTimeTrigger.of(3), lateness=5),
    "tumbling, continuously by the clock": of(TEN, Number(), ContinuousProcessingTimeTrigger.of(3)),
    "tumbling, by the clock": of(TEN, Number(), ProcessingTimeTrigger.create()),
    "tumbling, own trigger": of(TEN, None, Budget(7)),
    "days": of(TumblingEventTimeWindows.of("1 day", time_zone="Europe/Berlin")),
    "sliding": of(SLIDING),
    "sliding, folded": of(SLIDING, Number(), lateness=15),
    "sliding, with state": of(SLIDING, Notes()),
    "sliding, evicted": of(SLIDING, None, evictor=TimeEvictor.of(4)),
    "cumulating": of(CumulativeEventTimeWindows.of(20, 5)),
    "cumulating, folded": of(CumulativeEventTimeWindows.of(20, 5), Number()),
    "sessions": of(SESSIONS, lateness=15),
    "sessions, folded": of(SESSIONS, Number(), lateness=15),
    "sessions, own trigger": of(SESSIONS, None, Budget(1)),
    "sessions, continuously": of(SESSIONS, Number(), ContinuousEventTimeTrigger.of(3), lateness=5),
    "sessions, counted and evicted": of(SESSIONS, Number(), CountTrigger.of(2), CountEvictor.of(1)),
    "sessions, purged": of(SESSIONS, None, PurgingTrigger.of(EventTimeTrigger.create())),
    "dynamic": of(EventTimeSessionWindows.with_dynamic_gap(lambda record: 2 + record[1] % 3)),
    "clock": of(TumblingProcessingTimeWindows.of(10), Notes()),
    "clock, sliding": of(SlidingProcessingTimeWindows.of(30, 10), Number()),
    "clock, sessions": of(ProcessingTimeSessionWindows.with_gap(4)),
    "clock, sessions, folded": of(ProcessingTimeSessionWindows.with_gap(4), Number()),
    "clock, continuously": of(TumblingProcessingTimeWindows.of(10), None, ContinuousProcessingTimeTrigger.of(3)),
    "counts": lambda stream: stream.count_window(3).process(Contents()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_left_of_windows_that_are_over(name, monkeypatch):
    monkeypatch.setattr(limits, "SLACK_BYTES", SLACK)
    monkeypatch.setattr(limits, "CHUNK_BYTES", CHUNK)
    step = 86_400_000 if name == "days" else 10
    windows, longest = 1000 if LONG else 60, 0
    with open_windows(PROGRAMS[name]) as harness:
        for number in range(windows):
            time = number * step
            harness.push_all([("a", number), ("b", number), ("a", number + 1)], [time, time + 1, time + 3])
            harness.push_watermark(time + step // 2)
            harness.advance_processing_time(10)
            if number % 25 == 24:
                longest = max(longest, sum(map(len, harness.snapshot().chunks.values())))
                assert harness.num_event_time_timers() + harness.num_processing_time_timers() <= 40
        if name == "counts":  # incomplete windows stay
            left = [key for key in "ab" for _ in range(-harness.state_of(key)["window-count"] % 3)]
            harness.push_all([(key, 1) for key in left], [windows * step] * len(left))
        harness.push_watermark(2 * windows * step)
        harness.advance_processing_time(1000)
        log = sum(map(len, harness.snapshot().chunks.values()))
        assert len(harness.get_output()) > windows // 3
        assert harness.num_event_time_timers() == harness.num_processing_time_timers() == 0
        counts = {"window-count"} if name == "counts" else {"global/total"}
        assert all(harness.state_of(key).keys() <= counts for key in "ab")
        assert harness._backend.namespaces.num_keys == 0
        assert max(longest, log) <= 4 * SLACK
