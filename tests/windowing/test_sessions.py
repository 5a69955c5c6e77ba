"""Sessions that fold their elements: which operator does them, what they keep, and the general operator beside it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pillarbox import (
    AggregateFunction,
    CheckpointMismatchError,
    EventTimeSessionWindows,
    EventTimeTrigger,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    ValueStateDescriptor,
)
from pillarbox.operators.windowing.operator import WindowOperator
from pillarbox.operators.windowing.session_operator import SessionWindowOperator
from tests.windowing.windows import Contents, open_windows

LATE = OutputTag("late")


class Joined(AggregateFunction):
    """All values in order, in an accumulator that is changed in place; counts its calls."""

    def __init__(self) -> None:
        self.added = self.merged = 0

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        self.added += 1
        accumulator.append(value[1])
        return accumulator

    def merge(self, one, other):
        self.merged += 1
        one += other
        return one

    def get_result(self, accumulator):
        return tuple(accumulator)


class Named(ProcessWindowFunction):
    def process(self, key, context, elements):
        (result,) = elements
        yield key, tuple(context.window()), result


class ByHand(EventTimeTrigger):
    """The default trigger, but not it: the general operator asks it about each element."""


def summed(one, other):
    return one[0], one[1] + other[1]


def gap_of(value):
    return 1 + value[1] % 9


ASSIGNERS = [EventTimeSessionWindows.with_gap(6), EventTimeSessionWindows.with_dynamic_gap(gap_of)]


@pytest.mark.parametrize("assigner", ASSIGNERS)
@pytest.mark.parametrize("lateness", [0, 8])
def test_sessions_come_out_as_from_the_general_operator(assigner, lateness):
    """The same results with elements in the same order, as many merges; and late elements go where they went."""
    rng = random.Random(lateness)
    steps: list[Any] = []
    watermark = 0
    for number in range(600):
        steps.append((("abcd"[rng.randrange(4)], number), max(0, watermark + rng.randint(-20, 20))))
        if number % 3 == 0:
            watermark += rng.randint(0, 5)
            steps.append((None, watermark))
    found = []
    for trigger, kind in ((None, SessionWindowOperator), (ByHand(), WindowOperator)):
        function = Joined()

        def build(stream, trigger=trigger, function=function):
            windows = stream.window(assigner).allowed_lateness(lateness).side_output_late_data(LATE)
            return (windows if trigger is None else windows.trigger(trigger)).aggregate(function, Named())

        with open_windows(build) as harness:
            assert type(harness.operator) is kind
            parts = []
            for value, time in steps:
                if value is None:
                    harness.push_watermark(time)
                else:
                    harness.push(value, time)
                # Of sessions that end together, any may be first.
                records = sorted(harness.get_records(), key=lambda record: (record.timestamp, record.value))
                parts.append((records, list(harness.get_side_output(LATE))))
                harness.clear_output()
            found.append((parts, function.added, function.merged))
    assert found[0] == found[1]
    assert found[0][2] > 10 and any(late for _, late in found[0][0])


def test_a_record_that_bridges_three_sessions_merges_twice():
    function = Joined()
    wide = EventTimeSessionWindows.with_dynamic_gap(lambda value: 100 if value[1] == "wide" else 2)
    with open_windows(lambda s: s.window(wide).aggregate(function, Named())) as harness:
        for value, time in (("x", 10), ("y", 20), ("z", 30), ("far", 200), ("wide", 5)):
            harness.push(("a", value), time)
        assert function.merged == 2
        harness.push_watermark(1000)
        assert harness.get_output() == [("a", (5, 105), ("x", "y", "z", "wide")), ("a", (200, 202), ("far",))]


def test_a_session_that_fired_and_is_extended_fires_once_more_at_its_new_end():
    def build(stream):
        return stream.window(EventTimeSessionWindows.with_gap(10)).allowed_lateness(10).aggregate(Joined(), Named())

    with open_windows(build) as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(9)
        harness.push(("a", 2), 10)  # it touches: the watermark is at the end, and the session still there
        harness.push(("a", 3), 8)
        assert harness.get_output() == [("a", (0, 10), (1,))]
        harness.push_watermark(18)
        harness.push_watermark(19)
        harness.push(("a", 4), 3)
        harness.push_watermark(29)
        assert harness.get_output()[1:] == [("a", (0, 20), (1, 2, 3)), ("a", (0, 20), (1, 2, 3, 4))]
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []


def test_sessions_are_over_when_less_lateness_is_allowed_than_before():
    def build(lateness):
        windows = EventTimeSessionWindows.with_gap(5)
        return lambda stream: stream.window(windows).allowed_lateness(lateness).aggregate(Joined(), Named())

    with open_windows(build(100)) as harness:
        harness.push_all([("a", 1), ("a", 2), ("a", 3)], [0, 10, 50])
        harness.push_watermark(30)
        assert len(harness.get_output()) == 2
        snapshot = harness.snapshot()
    with open_windows(build(0), snapshot=snapshot) as harness:
        harness.push_watermark(200)
        assert harness.get_output() == [("a", (50, 55), (3,))]
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []


def test_a_growing_session_has_one_timer_and_one_accumulator():
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(30)).reduce(summed)) as harness:
        for time in range(2000):
            harness.push(("a", 1), time)
            assert harness.num_event_time_timers() == 1
            if time % 10 == 0:
                harness.push_watermark(time - 5 if time else 0)
        assert harness.get_output() == []
        assert harness.state_of("a") == {"reducing-sessions": ((0, 2029, ("a", 2000)),)}
        harness.push_watermark(2028)
        assert harness.get_output() == [("a", 2000)]


def test_after_a_thousand_sessions_nothing_is_left_and_the_log_is_within_its_slack():
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(5)).aggregate(Joined(), Named())) as harness:
        for number in range(1000):
            time = number * 20
            harness.push_all([("a", 1), ("b", 2), ("a", 3)], [time, time + 1, time + 4])
            harness.push_watermark(time + 3)
            if number % 50 == 49:
                snapshot = harness.snapshot()
                assert harness.num_event_time_timers() == 2
                assert sum(map(len, snapshot.chunks.values())) < 20_000
        harness.push_watermark(30_000)
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []
        assert len(harness.get_output()) == 2000


def test_sessions_that_stay_for_late_elements_have_few_timers():
    def build(stream):
        return stream.window(EventTimeSessionWindows.with_gap(5)).allowed_lateness(1000).aggregate(Joined(), Named())

    with open_windows(build) as harness:
        for time in range(0, 900, 10):
            harness.push(("a", time), time)
            harness.push_watermark(time + 3)
            assert harness.num_event_time_timers() <= 2
        harness.push(("a", -1), 402)
        assert harness.get_output()[-1] == ("a", (400, 407), (400, -1))
        harness.push_watermark(1500)
        assert [start for start, _, _ in harness.state_of("a")["aggregating-sessions"]] == list(range(500, 900, 10))
        harness.push_watermark(5000)
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []
        assert len(harness.get_output()) == 91


def test_sessions_of_processing_time_that_fold():
    with open_windows(lambda s: s.window(ProcessingTimeSessionWindows.with_gap(10)).reduce(summed)) as harness:
        assert type(harness.operator) is SessionWindowOperator
        for _ in range(3):
            harness.push(("a", 1))
            harness.push(("b", 5))
            harness.advance_processing_time(6)
        assert harness.get_output() == []
        harness.advance_processing_time(6)
        assert sorted(harness.get_output()) == [("a", 3), ("b", 15)]
        harness.snapshot()
        assert list(harness._backend.get_keys()) == [] and harness.num_processing_time_timers() == 0


def test_clear_and_global_state_of_window_functions():
    class Counting(Named):
        def __init__(self) -> None:
            self.cleared: list[Any] = []

        def process(self, key, context, elements):
            count = context.global_state().get_state(ValueStateDescriptor("sessions"))
            count.update((count.value() or 0) + 1)
            for result in super().process(key, context, elements):
                yield *result, count.value()

        def clear(self, context):
            self.cleared.append((tuple(context.window()), context.current_watermark()))

    function = Counting()
    with open_windows(
        lambda s: s.window(EventTimeSessionWindows.with_gap(5)).allowed_lateness(3).aggregate(Joined(), function)
    ) as harness:
        harness.push_all([("a", 1), ("a", 2)], [0, 20])
        harness.push_watermark(4)
        harness.push_watermark(6)
        assert function.cleared == []
        harness.push_watermark(7)
        assert function.cleared == [((0, 5), 7)]
        harness.push_watermark(100)
        assert harness.get_output() == [("a", (0, 5), (1,), 1), ("a", (20, 25), (2,), 2)]
        assert function.cleared[1:] == [((20, 25), 100)]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.window(ASSIGNERS[0]).process(Contents()),
        lambda s: s.window(ASSIGNERS[0]).trigger(ByHand()).reduce(summed),
    ],
)
def test_sessions_that_do_more_are_left_to_the_general_operator(build):
    with open_windows(build) as harness:
        assert type(harness.operator) is WindowOperator


def test_state_that_was_kept_another_way_is_refused():
    def quick(stream):
        return stream.window(ASSIGNERS[0]).reduce(summed)

    def general(stream):
        return stream.window(ASSIGNERS[0]).trigger(ByHand()).reduce(summed)

    for here, there, what in (
        (quick, general, "value 'reducing-sessions'"),
        (general, quick, "map 'merging-windows'"),
        (quick, lambda s: s.window(ASSIGNERS[0]).aggregate(Joined()), "value 'reducing-sessions'"),
    ):
        with open_windows(here) as harness:
            harness.push(("a", 1), 5)
            snapshot = harness.snapshot()
        with pytest.raises(CheckpointMismatchError, match=f"the checkpoint holds {what} of operator"):
            open_windows(there, snapshot=snapshot)
