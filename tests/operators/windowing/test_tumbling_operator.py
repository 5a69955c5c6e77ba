from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pillarbox import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from pillarbox._operators.windowing.api.window_starts import DayWindowStarts
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from tests.operators.windowing.test_days_of_zones import ZONES, half_hours
from tests.operators.windowing.windows import Contents, NumberWithoutMerge, open_windows

DAY = 86_400_000


class AtTheEnd(EventTimeTrigger):
    """The default trigger as a subclass, so that the general operator calls it for each element."""


class WhenTheClockSays(ProcessingTimeTrigger): ...


KINDS = {
    "days": (TumblingEventTimeWindows.of("1 day", time_zone="Europe/Berlin"), AtTheEnd(), DAY),
    "three days": (TumblingEventTimeWindows.of("3 days", time_zone="Pacific/Apia"), AtTheEnd(), DAY),
    "by the clock": (TumblingProcessingTimeWindows.of(10, 3), WhenTheClockSays(), 1),
    "days by the clock": (TumblingProcessingTimeWindows.of("1 day", time_zone="UTC"), WhenTheClockSays(), DAY),
}
SCRIPT: list[Any] = [(("a", 3), ("b", 5)), 4, (("a", 7), ("c", 8)), 9, (("b", 11),), 13, (("a", 2), ("a", 14)), 17, 60]


def play(kind: str, ways: tuple[bool, bool], *, lateness: int = 0) -> list[Any]:
    assigner, trigger, unit = KINDS[kind]
    snapshot, now, out = None, 0, []
    for number, step in enumerate(SCRIPT):
        quick = ways[number % 2]

        def build(stream: Any, quick: bool = quick) -> Any:
            windows = stream.window(assigner)
            if assigner.is_event_time():
                windows = windows.allowed_lateness(lateness)
            return (windows if quick else windows.trigger(trigger)).aggregate(NumberWithoutMerge())

        with open_windows(build, snapshot=snapshot, processing_time=now) as harness:
            assert type(harness.operator) is (TumblingWindowOperator if quick else WindowOperator)
            if isinstance(step, tuple):
                harness.push_all([(key, 1) for key, _ in step], [time * unit for _, time in step])
            elif assigner.is_event_time():
                harness.push_watermark(step * unit)
            else:
                now = step * unit
                harness.set_processing_time(now)
            out.append(sorted(harness.get_records()))
            snapshot = harness.snapshot()
    return out


@pytest.mark.parametrize("lateness", [0, 5 * DAY])
@pytest.mark.parametrize("kind", KINDS)
def test_both_operators_give_the_same_and_take_turns_on_the_same_state(kind, lateness):
    outcomes = [play(kind, (kind_, other), lateness=lateness) for kind_ in (True, False) for other in (True, False)]
    assert outcomes[0] == outcomes[1] == outcomes[2] == outcomes[3]
    assert sum(map(len, outcomes[0])) >= 5


def test_windows_of_the_clock_fire_for_all_keys_in_one_run():
    with open_windows(lambda s: s.window(TumblingProcessingTimeWindows.of(10)).reduce(max)) as harness:
        harness.push_all([(key, number) for number in range(3) for key in "abc"])
        runs: list[Any] = []
        output: Any = harness.operator.output
        output.process_records = lambda records: runs.append(sorted(records.values))
        harness.advance_processing_time(9)
        assert runs == [[("a", 2), ("b", 2), ("c", 2)]]
        assert harness.num_processing_time_timers() == harness.num_keyed_state_entries() == 0


def test_functions_that_want_all_elements_take_the_general_operator():
    for assigner, _, _ in KINDS.values():
        with open_windows(lambda s: s.window(assigner).process(Contents())) as harness:  # noqa: B023
            assert type(harness.operator) is WindowOperator


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("days", [1, 2, 3])
@pytest.mark.parametrize("offset", [0, 3 * 3_600_000])
def test_days_of_many_times_are_those_of_each(zone, days, offset):
    line = DayWindowStarts(zone, offset, "of()")
    # Far apart, too: a date that means "no end".
    times = np.array([*half_hours(zone), 253_370_764_800_000, -DAY * 40_000])
    starts = line.starts(times, days * DAY)
    assert starts.tolist() == [line.start(time, days * DAY) for time in times.tolist()]


def test_a_far_date_costs_no_look_at_the_days_before_it():
    line = DayWindowStarts("Europe/Berlin", 0, "of()")
    line.starts(np.array([1_700_000_000_000, 253_370_764_800_000]), DAY)
    assert line._first.cache_info().misses < 20


def test_a_time_in_no_year_names_its_record():
    def build(stream: Any) -> Any:
        return stream.window(TumblingEventTimeWindows.of("1 day", time_zone="UTC")).reduce(max)

    with open_windows(build) as harness, pytest.raises(Exception, match=r"years 1 to(?s:.*)record \('b', 2\)"):
        harness.push_all([("a", 1), ("b", 2)], [0, 2**60])


@pytest.mark.parametrize("quick", [True, False])
def test_a_key_whose_window_has_fired_does_not_fire_again_at_a_lesser_watermark(quick):
    """Subtasks before a savepoint may have different watermarks, and the lowest one is restored."""

    def build(stream: Any) -> Any:
        windows = stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(20)
        return (windows if quick else windows.trigger(AtTheEnd())).aggregate(NumberWithoutMerge(), KeyAndElements())

    def after(snapshot: Any, steps: list[Any]) -> Any:
        with open_windows(build, snapshot=snapshot) as harness:
            assert type(harness.operator) is (TumblingWindowOperator if quick else WindowOperator)
            for step in steps:
                if isinstance(step, int):
                    harness.push_watermark(step)
                else:
                    harness.push_all([(key, 1) for key, _ in step], [time for _, time in step])
            out.append(sorted(harness.get_output()))
            harness._current_watermark = 4
            return harness.snapshot()

    out: list[Any] = []
    fired = after(None, [(("a", 3), ("b", 5), ("d", 6)), 9])
    assert out.pop() == [("a", 1), ("b", 1), ("d", 1)]
    # Restored twice. New windows, and windows with a new element, fire at their end.
    both = after(fired, [(("c", 6), ("b", 7))])
    for steps in ([9], [5, 9, 12], [(("a", 20),), 9]):
        after(both, steps)
        assert out.pop() == [("b", 2), ("c", 1)]
    after(both, [(("a", 7),), 9, (("d", 8),)])
    assert out.pop() == [("a", 2), ("b", 2), ("c", 1), ("d", 2)]
    after(both, [30, (("a", 8),)])
    assert out.pop() == [("b", 2), ("c", 1)]


class KeyAndElements(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, *elements
