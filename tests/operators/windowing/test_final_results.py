"""A window's final output does not depend on firing times, epochs, restarts, parallelism, or boundedness.

This requires that no record is later than the allowed lateness.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pillarbox.testing import ProgramTestHarness
from tests.support.programs import bounded, first

LATE = OutputTag("late")
FAR = 10**6

KINDS: dict[str, Any] = {
    "tumbling": TumblingEventTimeWindows.of(30, 7),
    "sliding": SlidingEventTimeWindows.of(50, 20),
    "cumulating": CumulativeEventTimeWindows.of(60, 20),
    "sessions": EventTimeSessionWindows.with_gap(12),
}


class Numbers(AggregateFunction):
    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return *accumulator, value[2]

    def get_result(self, accumulator):
        return tuple(sorted(accumulator))

    def merge(self, accumulator, other):
        return accumulator + other


class Named(ProcessWindowFunction):
    def process(self, key, context, elements):
        (numbers,) = elements
        yield key, tuple(context.window()), numbers


class NamedAll(Named):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), tuple(sorted(value[2] for value in elements))


def program(kind, out_of_order, lateness, interval, folds):
    def build(env, events):
        timed = events.assign_timestamps_and_watermarks(bounded(out_of_order))
        windows = timed.key_by(first).window(KINDS[kind]).allowed_lateness(lateness).side_output_late_data(LATE)
        if interval is not None:
            windows = windows.trigger(ContinuousEventTimeTrigger.of(interval))
        results = windows.aggregate(Numbers(), Named()) if folds else windows.process(NamedAll())
        return {"results": results, "late": results.get_side_output(LATE)}

    return build


def final(kind, results):
    last = {(key, window): numbers for key, window, numbers in results if key != "end"}
    if kind != "sessions":
        return last
    return {
        (key, (start, end)): numbers
        for (key, (start, end)), numbers in last.items()
        if not any(
            key == other and (left, right) != (start, end) and left <= start and end <= right
            for other, (left, right) in last
        )
    }


def by_hand(kind, events):
    expected: dict[tuple[str, tuple[int, int]], list[int]] = {}
    if kind != "sessions":
        for key, time, number in events:
            for window in KINDS[kind].assign_windows(None, time, None):
                expected.setdefault((key, tuple(window)), []).append(number)
    else:
        for key in {key for key, _, _ in events}:
            sessions: list[tuple[int, int, list[int]]] = []
            for _, time, number in sorted((e for e in events if e[0] == key), key=lambda e: e[1]):
                if sessions and time <= sessions[-1][1]:
                    start, _, numbers = sessions.pop()
                    sessions.append((start, time + 12, [*numbers, number]))
                else:
                    sessions.append((time, time + 12, [number]))
            expected |= {(key, (start, end)): numbers for start, end, numbers in sessions}
    return {window: tuple(sorted(numbers)) for window, numbers in expected.items()}


@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), folds=st.booleans(), parallelism=st.integers(1, 3))
def test_final_results_are_those_of_all_records_at_once(data, kind, folds, parallelism):
    late_by = data.draw(st.integers(0, 60), "how late records come")
    out_of_order = data.draw(st.integers(0, late_by), "how late the strategy expects them")
    interval = data.draw(st.none() | st.sampled_from([1, 7, 25, 100]), "interval of the trigger")
    times = sorted(data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=25)))
    delays = data.draw(st.lists(st.integers(0, late_by), min_size=len(times), max_size=len(times)))
    arrival = sorted(range(len(times)), key=lambda number: times[number] + delays[number])
    keys = data.draw(st.lists(st.sampled_from("ab"), min_size=len(times), max_size=len(times)))
    events = [(keys[number], times[number], number) for number in arrival]
    expected = by_hand(kind, events)
    build = program(kind, out_of_order, late_by - out_of_order, interval, folds)

    with ProgramTestHarness(build) as batch:
        batch.push("events", *events)
        batch.end_input()
        assert final(kind, batch.get_output("results")) == expected
    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        left = events
        while left:
            size = data.draw(st.integers(1, len(left)))
            for number, event in enumerate(left[:size]):
                harness.push("events", event, partition=number % 2 if size > 6 else 0)
            left = left[size:]
            if data.draw(st.booleans()):
                harness.fail_epoch()
            harness.run_epoch()
            if data.draw(st.booleans()):
                harness.restore(harness.snapshot())
        if data.draw(st.booleans()):
            harness.end_input()
        else:
            harness.push("events", ("end", FAR, -1))
            harness.run_epoch()
        assert harness.get_output("late") == []
        assert final(kind, harness.get_output("results")) == expected
