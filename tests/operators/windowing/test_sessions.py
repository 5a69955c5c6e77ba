from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    CheckpointMismatchError,
    EventTimeSessionWindows,
    EventTimeTrigger,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._elements.records import ArrowRecords
from pillarbox._operators.windowing import by_key
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness, ProgramTestHarness, row
from tests.operators.windowing.windows import Contents, open_windows

LATE = OutputTag("late")


class Joined(AggregateFunction):
    def __init__(self) -> None:
        self.added = self.merged = 0

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        self.added += 1
        accumulator.append(value[1])
        return accumulator

    def merge(self, accumulator, other):
        self.merged += 1
        accumulator += other
        return accumulator

    def get_result(self, accumulator):
        return tuple(accumulator)


class Named(ProcessWindowFunction):
    def process(self, key, context, elements):
        (result,) = elements
        yield key, tuple(context.window()), result


class ByHand(EventTimeTrigger):
    """The default trigger as a subclass, so that the general operator calls it for each element."""


def summed(pair, other):
    return pair[0], pair[1] + other[1]


def gap_of(value):
    return 1 + value[1] % 9


ASSIGNERS = [EventTimeSessionWindows.with_gap(6), EventTimeSessionWindows.with_dynamic_gap(gap_of)]


@pytest.mark.parametrize("assigner", ASSIGNERS)
@pytest.mark.parametrize("lateness", [0, 8])
def test_sessions_come_out_as_from_the_general_operator(assigner, lateness):
    rng = random.Random(lateness)
    steps: list[Any] = []
    watermark = 0
    for number in range(600):
        steps.append((("abcd"[rng.randrange(4)], number), max(0, watermark + rng.randint(-20, 20))))
        if number % 3 == 0:
            watermark += rng.randint(0, 5)
            steps.append((None, watermark))
    results = []
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
            results.append((parts, function.added, function.merged))
    assert results[0] == results[1]
    assert results[0][2] > 10 and any(late for _, late in results[0][0])


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


class OfTheDay(ProcessWindowFunction):
    def process(self, key, context, elements):
        descriptor = MapStateDescriptor("sessions")
        descriptor.enable_time_to_live(StateTtlConfig(100))
        sessions = context.global_state().get_map_state(descriptor)
        sessions.put(context.window().start, len(elements))
        if key == "fails":
            raise ValueError("after the change")
        yield key, len(list(sessions.keys()))


def test_global_state_may_have_a_time_to_live():
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")

    def build(env, events):
        keyed = events.assign_timestamps_and_watermarks(at).key_by("k")
        windows = keyed.window(EventTimeSessionWindows.with_gap(10)).side_output_errors(OutputTag("failed"))
        return windows.process(OfTheDay())

    snapshot, outcome = None, []
    for clock, start in ((0, 0), (99, 100), (150, 200), (400, 300)):
        with ProgramTestHarness(build, snapshot=snapshot) as harness:
            harness.set_processing_time(clock)
            harness.push("events", row(k="a", at=start), row(k="fails", at=start), row(k="b", at=start + 50))
            outcome += [result for result in harness.run_epoch()["output"] if result[0] == "a"]
            snapshot = harness.snapshot()
    assert outcome == [("a", 1), ("a", 2), ("a", 2), ("a", 1)]


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


# -- columnar batches, buffered and folded key by key --


class InOrder(AggregateFunction):
    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return (*accumulator, value.number)

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        return accumulator + other


class OfWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), *elements


RUNS = st.lists(
    st.one_of(
        st.tuples(st.just("records"), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=8)),
        st.tuples(st.just("watermark"), st.integers(0, 70)),
        st.just(("epoch", 0)),
        st.just(("restart", 0)),
    ),
    max_size=12,
)


def as_columns(rows: list[tuple[Any, int, int]], keys: list[str]) -> ArrowRecords:
    parts: dict[str, Any] = {name: pa.array([row[0] for row in rows], pa.int64()) for name in keys}
    parts["number"] = pa.array([row[1] for row in rows], pa.int64())
    return ArrowRecords(pa.RecordBatch.from_pydict(parts), np.array([row[2] for row in rows], np.int64))


@given(RUNS, st.integers(1, 12), st.integers(0, 10), st.sampled_from([["key"], ["key", "more"]]))
def test_columnar_runs_are_folded_as_rows_are(steps, gap, lateness, keys):
    def open_one(snapshot=None):
        env = StreamExecutionEnvironment()
        kind = Types.ROW_NAMED([*keys, "number"], [Types.LONG()] * (len(keys) + 1))
        keyed = env.from_collection([], kind).key_by(*keys)
        windows = keyed.window(EventTimeSessionWindows.with_gap(gap)).allowed_lateness(lateness)
        step: Any = windows.side_output_late_data(LATE).aggregate(InOrder(), OfWindow())._step
        node = ChainNode(step.name, "sessions", step.factory)
        return KeyedOneInputStreamOperatorTestHarness(node, snapshot=snapshot)

    pair = [open_one(), open_one()]
    number = watermark = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_key, "_ROWS", 10)
        patch.setattr(by_key, "_PORTION", 3)
        for what, content in [*steps, ("watermark", 1000)]:
            if what == "records" and content:
                rows = []
                for key, time in content:
                    number += 1
                    rows.append((key, number, time))
                columns = as_columns(rows, keys)
                pair[0].push_records(columns)
                pair[1].push_all(columns.values, columns.timestamps)
            elif what == "watermark" and content >= watermark:
                watermark = content
                for harness in pair:
                    harness.push_watermark(watermark)
                assert sorted(pair[0].get_output()) == sorted(pair[1].get_output())
                assert pair[0].get_side_output(LATE) == pair[1].get_side_output(LATE)
            elif what in ("epoch", "restart"):
                snapshots = [harness.snapshot() for harness in pair]
                assert [pair[0].state_of(key) for key in pair[1].get_keys()] == [
                    pair[1].state_of(key) for key in pair[1].get_keys()
                ]
                if what == "restart":
                    pair = [open_one(snapshot) for snapshot in snapshots]
        for harness in pair:
            harness.snapshot()
            assert harness.get_keys() == [] and harness.num_event_time_timers() == 0
            harness.close()


def test_an_error_in_runs_that_waited_names_key_and_record():
    class Fails(InOrder):
        def add(self, value, accumulator):
            return 1 / 0 if value.number == 5 else super().add(value, accumulator)

    env = StreamExecutionEnvironment()
    kind = Types.ROW_NAMED(["key", "number"], [Types.LONG(), Types.LONG()])
    windows = env.from_collection([], kind).key_by("key").window(EventTimeSessionWindows.with_gap(5))
    step: Any = windows.aggregate(Fails())._step
    node = ChainNode(step.name, "sessions", step.factory)
    with KeyedOneInputStreamOperatorTestHarness(node) as harness:
        harness.push_records(as_columns([(7, 1, 10), (8, 5, 11), (7, 2, 12)], ["key"]))
        with pytest.raises(OperatorError, match=r"failed at the record Row\(key=8, number=5\): ZeroDiv"):
            harness.push_watermark(3)
