"""Panes: the division of time, the number of function calls, and cleanup after the end of windows."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    CheckpointMismatchError,
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from pillarbox._copies import copied
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.panes import EvenPanes, panes_of
from pillarbox._operators.windowing.two_stacks import TwoStacks
from tests.operators.windowing.windows import Contents, open_windows

spans = st.one_of(
    st.builds(
        lambda size, slide, offset: SlidingEventTimeWindows.of(size, slide, offset % slide),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(0, 39),
    ),
    st.builds(
        lambda step, steps, offset: CumulativeEventTimeWindows.of(step * steps, step, offset % (step * steps)),
        st.integers(1, 10),
        st.integers(1, 5),
        st.integers(0, 49),
    ),
)


def summed(pair, other):
    return pair[0], pair[1] + other[1]


# -- how time is cut --


@given(spans, st.integers(-500, 500))
def test_panes_are_what_the_windows_of_their_times_say(assigner, begin):
    panes = panes_of(assigner)
    assert isinstance(panes, EvenPanes)
    times = range(begin, begin + 120)
    windows = {time: assigner.assign_windows("element", time, None) for time in times}
    starts = panes.starts(np.array(times, np.int64)).tolist()
    outside = panes.outside(np.array(times, np.int64))
    for number, (time, start) in enumerate(zip(times, starts)):
        assert start == panes.start(time) <= time
        assert (not windows[time]) == (outside is not None and bool(outside[number]))
        if windows[time]:
            ends = sorted(window.end for window in windows[time])
            assert panes.end_after(start) == ends[0] and panes.last_end(start) == ends[-1]
            for window in windows[time]:
                assert panes.window_start(window.end) == window.start
    for earlier, later in pairwise(times):
        if panes.start(earlier) == panes.start(later):
            assert windows[earlier] == windows[later], "all of a pane is in the same windows"


# -- two stacks --


def test_a_copy_may_be_changed():
    class Own:
        def __init__(self) -> None:
            self.values = [1]

    for value in ([1, 2], {"a": 1}, [[1], 2], {"a": [1]}, {1, 2}, ([1], 2)):
        again = copied(value)
        assert again == value and again is not value
    own = Own()
    copied(own).values.append(2)
    nested: tuple[list[int], int] = ([1], 2)
    copied(nested)[0].append(5)
    assert own.values == [1] and nested == ([1], 2)
    plain = (1, "a", None)
    assert copied(plain) is plain


class Merging:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, value: list[int], other: list[int]) -> list[int]:
        self.count += 1
        value.extend(other)
        other.clear()
        return value


@given(st.integers(1, 40), st.integers(1, 40), st.sets(st.integers(0, 200)), st.randoms(use_true_random=False))
def test_two_stacks_merge_each_pane_three_times_at_most(size, slide, there, rng):
    values = {pane: [pane] for pane in there}
    merge = Merging()
    stacks = TwoStacks(merge, values.get)
    panes = sorted(there)
    windows = 0
    for start in range(-size, 201, slide):
        if rng.random() < 0.1:
            continue  # empty windows are not requested
        windows += 1
        expected = [pane for pane in panes if start <= pane < start + size]
        assert (stacks.window(start, start + size, panes) or []) == expected
    assert merge.count <= 2 * len(there) + windows
    assert values == {pane: [pane] for pane in there}, "the panes' own accumulators stay as they are"


@given(
    st.integers(1, 60),
    st.integers(1, 10),
    st.sets(st.integers(0, 200)),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=12),
)
def test_a_pane_that_changes_costs_the_panes_of_one_stack_at_most(size, slide, there, changes):
    values = {pane: [pane] for pane in there}
    merge = Merging()
    stacks = TwoStacks(merge, values.get)
    cost = 0
    for number, start in enumerate(range(-size, 201, slide)):
        end = start + size
        for at, pane in changes:
            if at == number and pane >= start:
                values[pane] = [*values.get(pane, ()), -number]
                stacks.changed(pane)
                cost += sum(start <= value < end for value in values)
        expected = [value for pane in sorted(values) if start <= pane < end for value in values[pane]]
        before = {pane: list(value) for pane, value in values.items()}
        assert (stacks.window(start, end, sorted(values)) or []) == expected
        assert values == before
        cost += 1 + sum(end - size // 8 <= pane < end for pane in values)  # panes outside the back stack
    assert merge.count <= 2 * len(values) + cost


# -- the operator --


class Counted(AggregateFunction):
    def __init__(self) -> None:
        self.added = self.merged = 0

    def create_accumulator(self):
        return [0]

    def add(self, value, accumulator):
        self.added += 1
        accumulator[0] += value[1]
        return accumulator

    def merge(self, accumulator, other):
        self.merged += 1
        accumulator[0] += other[0]
        other[0] = 10**9  # a later read would notice
        return accumulator

    def get_result(self, accumulator):
        result = accumulator[0]
        accumulator[0] = 10**9
        return result


class Named(ProcessWindowFunction):
    def process(self, key, context, elements):
        (result,) = elements
        yield key, tuple(context.window()), result


def named_sums(assigner, function):
    return lambda stream: stream.window(assigner).aggregate(function, Named())


@pytest.mark.parametrize(
    "assigner",
    [SlidingEventTimeWindows.of(600, 10), SlidingEventTimeWindows.of(605, 10), CumulativeEventTimeWindows.of(600, 10)],
)
def test_one_update_a_record_and_three_merges_a_pane_and_window(assigner):
    function = Counted()
    keys, minutes = 3, 200
    rng = random.Random(1)
    sums: dict[Any, int] = {}
    with open_windows(named_sums(assigner, function)) as harness:
        assert type(harness.operator) is PaneWindowOperator
        for minute in range(minutes):
            records = [(key, rng.randint(0, 9), minute * 10 + rng.randint(0, 9)) for key in range(keys) for _ in "ab"]
            for key, value, time in records:
                for window in assigner.assign_windows(None, time, None):
                    sums[key, tuple(window)] = sums.get((key, tuple(window)), 0) + value
            harness.push_all([(key, value) for key, value, _ in records], [time for _, _, time in records])
            harness.push_watermark(minute * 10 + 9)
        harness.end_input()
        fired = {(key, window): result for key, window, result in harness.get_output()}
        assert fired == sums and len(harness.get_output()) == len(sums)
        panes = keys * minutes * (2 if assigner.size == 605 else 1)
        assert function.added == keys * minutes * 2
        assert function.merged <= 2 * panes + len(sums)
        harness.snapshot()
        assert list(harness._backend.get_keys()) == []
        assert harness.num_event_time_timers() == 0


def test_a_cumulating_window_costs_one_merge_a_step():
    function = Counted()
    with open_windows(named_sums(CumulativeEventTimeWindows.of(1000, 10), function)) as harness:
        harness.push_all([("a", 1)] * 100, range(0, 1000, 10))
        harness.push_watermark(2000)
        assert [result for _, _, result in harness.get_output()] == list(range(1, 101))
        assert function.merged == 99


def test_after_a_thousand_windows_nothing_is_left_and_the_log_is_within_its_slack():
    with open_windows(named_sums(SlidingEventTimeWindows.of(100, 10), Counted())) as harness:
        for number in range(1000):
            harness.push_all([("a", 1), ("b", 1)], [number * 10, number * 10 + 5])
            harness.push_watermark(number * 10 + 9)
            if number % 50 == 49:
                snapshot = harness.snapshot()
                assert harness.num_keyed_state_entries() <= 2 * 10, "the panes of one window a key"
                assert harness.num_event_time_timers() == 2
                assert sum(map(len, snapshot.chunks.values())) < 40_000
        harness.push_watermark(20_000)
        snapshot = harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []
        assert len(harness.get_output()) == 2 * 1009


def test_a_pane_keeps_one_accumulator_of_many_records():
    with open_windows(named_sums(SlidingEventTimeWindows.of(100, 10), Counted())) as harness:
        harness.push_all([("a", 1)] * 5000, [5] * 5000)
        assert harness.num_keyed_state_entries() == 1
        assert len(next(iter(harness.snapshot().chunks.values()))) < 2000


def test_windows_of_a_key_that_has_gone_quiet_fire_until_the_last_one_that_holds_a_pane():
    with open_windows(named_sums(SlidingEventTimeWindows.of(30, 10), Counted())) as harness:
        harness.push_all([("a", 1), ("a", 2), ("a", 4)], [5, 15, 105])
        harness.push_watermark(1000)
        assert [(window, result) for _, window, result in harness.get_output()] == [
            *(((-20, 10), 1), ((-10, 20), 3), ((0, 30), 3), ((10, 40), 2)),
            *(((80, 110), 4), ((90, 120), 4), ((100, 130), 4)),
        ]


def test_a_record_behind_the_watermark_counts_in_the_windows_that_are_open():
    with open_windows(named_sums(SlidingEventTimeWindows.of(30, 10), Counted())) as harness:
        harness.push_all([("a", 1), ("a", 2)], [5, 15])
        harness.push_watermark(19)
        harness.clear_output()
        harness.push_all([("a", 4), ("b", 8)], [7, 8])  # of a merged pane, and of a new pane
        assert harness.get_output() == []
        harness.push_watermark(39)
        assert [(key, window, result) for key, window, result in harness.get_output() if window[0] == 0] == [
            ("a", (0, 30), 7),
            ("b", (0, 30), 8),
        ]


@pytest.mark.parametrize(
    ("late_by", "panes_of_a_window", "merges"),
    [
        (15, 64, 6),  # the usual lateness: no merge is repeated
        (300, 64, 70),  # far behind: a stack with the pane is merged again
    ],
)
def test_the_cost_of_a_record_behind_the_watermark(late_by, panes_of_a_window, merges):
    function = Counted()
    size = panes_of_a_window * 10
    with open_windows(named_sums(SlidingEventTimeWindows.of(size, 10), function)) as harness:
        for number in range(200):
            if number == 100:
                harness.clear_output()
                before = function.merged
            harness.push(("a", 1), number * 10)
            harness.push_watermark(number * 10 + 9)
            harness.push(("a", 1), number * 10 + 9 - late_by)
        outputs = {window: result for _, window, result in harness.get_output()}
        late = [number * 10 + 9 - late_by for number in range(100 + panes_of_a_window - 1)]  # before its end
        assert outputs[(1000, 1000 + size)] == panes_of_a_window + sum(1000 <= time < 1000 + size for time in late)
        assert (function.merged - before) / 100 <= merges


def test_late_records_change_their_pane_and_fire_the_windows_that_have_fired():
    def build(stream):
        windows = stream.window(SlidingEventTimeWindows.of(30, 10)).allowed_lateness(15)
        return windows.aggregate(Counted(), Named())

    with open_windows(build) as harness:
        harness.push_all([("a", 1), ("a", 2)], [5, 15])
        harness.push_watermark(32)
        harness.clear_output()
        # Of its windows (-20, 10) is over, (-10, 20) and (0, 30) have fired.
        harness.push(("a", 4), 7)
        assert [(window, result) for _, window, result in harness.get_output()] == [((0, 30), 7), ((-10, 20), 7)]
        harness.push(("a", 8), 17)
        harness.push_watermark(100)
        assert [(window, result) for _, window, result in harness.get_output()][2:] == [
            *(((0, 30), 15), ((-10, 20), 15)),
            ((10, 40), 10),
        ]
        harness.snapshot()
        assert list(harness._backend.get_keys()) == [] and harness.num_event_time_timers() == 0


@pytest.mark.parametrize(
    "assigner", [SlidingProcessingTimeWindows.of(30, 10), CumulativeProcessingTimeWindows.of(30, 10)]
)
def test_panes_of_processing_time(assigner):
    function = Counted()
    with open_windows(named_sums(assigner, function), processing_time=2) as harness:
        assert type(harness.operator) is PaneWindowOperator
        for value in (1, 2, 4, 8):
            harness.push(("a", value))
            harness.push(("a", 0))
            harness.advance_processing_time(10)
        harness.advance_processing_time(1000)
        outputs = [(window, result) for _, window, result in harness.get_output()]
        if "Cumulative" in repr(assigner):
            assert outputs == [((0, 10), 1), ((0, 20), 3), ((0, 30), 7), ((30, 40), 8), ((30, 50), 8), ((30, 60), 8)]
        else:
            assert outputs == [
                *(((-20, 10), 1), ((-10, 20), 3), ((0, 30), 7)),
                *(((10, 40), 14), ((20, 50), 12), ((30, 60), 8)),
            ]
        assert function.added == 8
        harness.snapshot()
        assert list(harness._backend.get_keys()) == [] and harness.num_processing_time_timers() == 0


# -- which programs --


class HasState(Named):
    def process(self, key, context, elements):
        context.window_state().get_state(ValueStateDescriptor("x")).update(1)
        yield from super().process(key, context, elements)


class Clears(Named):
    def clear(self, context):
        pass


class CannotMerge(Counted):
    merge = AggregateFunction.merge


class ByHand(EventTimeTrigger):
    pass


@pytest.mark.parametrize("assigner", [SlidingEventTimeWindows.of(10, 10), CumulativeEventTimeWindows.of(10, 10)])
def test_windows_that_are_side_by_side_keep_the_state_of_their_kind(assigner):
    with open_windows(named_sums(assigner, Counted())) as harness:
        assert type(harness.operator) is PaneWindowOperator
        harness.push_all([("a", 1), ("a", 2), ("b", 4)], [5, 15, 16])
        harness.push_watermark(30)
        assert sorted(harness.get_output()) == [("a", (0, 10), 1), ("a", (10, 20), 2), ("b", (10, 20), 4)]


@pytest.mark.parametrize("kind", [TumblingEventTimeWindows, SlidingEventTimeWindows, EventTimeSessionWindows])
def test_an_assigner_of_a_program_is_asked_about_each_element(kind):
    def later(self, element, timestamp, context):
        return kind.assign_windows(self, element, timestamp + 100, context)

    own = type("Own", (kind,), {"assign_windows": later})
    assigner = own(10, 10) if kind is SlidingEventTimeWindows else own(10)
    with open_windows(named_sums(assigner, Counted())) as harness:
        assert type(harness.operator) is WindowOperator
        harness.push(("a", 1), 5)
        harness.push_watermark(300)
        ((_, (start, _), _),) = harness.get_output()
        assert 100 <= start <= 105


sliding = SlidingEventTimeWindows.of(30, 10)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.window(sliding).process(Contents()),
        lambda s: s.window(sliding).aggregate(CannotMerge()),
        lambda s: s.window(sliding).aggregate(Counted(), HasState()),
        lambda s: s.window(sliding).aggregate(Counted(), Clears()),
        lambda s: s.window(sliding).trigger(ByHand()).reduce(summed),
        lambda s: s.window(SlidingEventTimeWindows.of("2 days", "1 day", time_zone="Europe/Berlin")).reduce(summed),
    ],
)
def test_windows_that_have_something_of_their_own_are_not_made_of_panes(build):
    with open_windows(build) as harness:
        assert type(harness.operator) is WindowOperator


def test_state_that_was_kept_another_way_is_refused():
    def by(trigger):
        return lambda s: (s.window(sliding) if trigger is None else s.window(sliding).trigger(trigger)).reduce(summed)

    snapshots = {}
    for trigger in (None, ByHand()):
        with open_windows(by(trigger)) as harness:
            harness.push(("a", 1), 5)
            snapshots[trigger is None] = harness.snapshot()
    with pytest.raises(
        CheckpointMismatchError, match=r"reducing 'window-contents' of operator 'window\.reduce: summed'"
    ):
        open_windows(by(None), snapshot=snapshots[False])
    with pytest.raises(CheckpointMismatchError, match=r"holds timers 'pane-timers/event' of operator"):
        open_windows(by(ByHand()), snapshot=snapshots[True])
    other = SlidingEventTimeWindows.of(40, 10)
    with pytest.raises(CheckpointMismatchError, match=r"holds reducing 'panes of 30 ms each 10 ms, offset 0 ms'"):
        open_windows(lambda s: s.window(other).reduce(summed), snapshot=snapshots[True])
