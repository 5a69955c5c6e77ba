from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pillarbox import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    KeyedProcessFunction,
    ListStateDescriptor,
    MergingWindowAssigner,
    OperatorError,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    ReduceFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowAssigner,
    WindowFunction,
)
from pillarbox._operators.windowing.api.session_windows import SessionWindows
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from pillarbox.testing import StreamRecord, Watermark, check_operator
from tests.operators.windowing.windows import Contents, Number, open_windows


def push(harness, *records: tuple[Any, Any, int]) -> list[Any]:
    harness.clear_output()
    for key, value, time in records:
        harness.push((key, value), time)
    return list(harness.get_output())


def advance(harness, watermark: int) -> list[Any]:
    harness.clear_output()
    harness.push_watermark(watermark)
    return list(harness.get_output())


def summed(pair, other):
    return pair[0], pair[1] + other[1]


# -- when windows fire --


def test_t8_a_window_that_is_due_fires_at_once_and_with_each_record_again():
    with open_windows(
        lambda s: s.window(TumblingEventTimeWindows.of(10)).allowed_lateness(5).process(Contents())
    ) as harness:
        assert push(harness, ("a", 1, 3)) == []
        assert advance(harness, 12) == [("a", (0, 10), [1])]
        assert push(harness, ("a", 2, 4)) == [("a", (0, 10), [1, 2])]
        assert push(harness, ("b", 3, 4)) == [("b", (0, 10), [3])]
        assert advance(harness, 14) == []
        assert push(harness, ("a", 4, 4)) == []  # now it is too late


def test_results_carry_the_last_timestamp_of_their_window():
    with open_windows(lambda s: s.window(TumblingEventTimeWindows.of(10)).reduce(summed)) as harness:
        push(harness, ("a", 1, 3), ("a", 2, 4))
        harness.push_watermark(20)
        assert harness.get_records() == [(("a", 3), 9)]


def test_sessions_that_touch_are_one():
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(2)).process(Contents())) as harness:
        push(harness, ("a", 1, 6), ("a", 2, 8), ("a", 3, 11))
        assert advance(harness, 100) == [("a", (6, 10), [1, 2]), ("a", (11, 13), [3])]


def test_a_record_that_bridges_sessions_keeps_the_elements_of_all():
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(3)).process(Contents())) as harness:
        push(harness, ("a", 1, 0), ("a", 2, 10), ("a", 3, 5), ("a", 4, 3), ("a", 5, 8))
        ((key, window, values),) = advance(harness, 100)
        assert (key, window, sorted(values)) == ("a", (0, 13), [1, 2, 3, 4, 5])
        harness.snapshot()
        assert list(harness._backend.get_keys()) == []


def test_a_record_looks_at_the_sessions_that_it_meets_alone(monkeypatch):
    class Own(EventTimeSessionWindows):
        def merge_windows(self, windows, callback):
            super().merge_windows(windows, callback)

    asked = []
    merge = SessionWindows.merge_windows

    def counting(self, windows, callback):
        asked.append(len(windows))
        merge(self, windows, callback)

    with open_windows(lambda s: s.window(Own(2)).process(Contents())) as harness:
        monkeypatch.setattr(SessionWindows, "merge_windows", counting)
        push(harness, *(("a", number, 10 * number) for number in range(50)))
        assert asked == list(range(2, 51))
    monkeypatch.setattr(SessionWindows, "merge_windows", merge)
    asked.clear()
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(2)).process(Contents())) as harness:
        monkeypatch.setattr(SessionWindows, "merge_windows", counting)
        push(harness, *(("a", number, 10 * number) for number in range(50)))
        assert asked == []
        push(harness, ("a", 50, 101), ("a", 51, 98), ("a", 52, 98), ("a", 53, 1000))
        assert asked == [2, 2, 2]
        assert len(advance(harness, 5000)) == 51


class Merges(AggregateFunction):
    merged = 0

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value[1]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        type(self).merged += 1
        return accumulator + other


def test_accumulators_are_merged_only_where_two_windows_with_elements_meet():
    Merges.merged = 0
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(3)).aggregate(Merges())) as harness:
        push(harness, ("a", 1, 0), ("a", 2, 2), ("a", 4, 3))
        assert Merges.merged == 0
        push(harness, ("a", 8, 9), ("a", 16, 6))
        assert Merges.merged == 1
        assert advance(harness, 100) == [31]


def test_processing_time_windows_and_sessions():
    with open_windows(lambda s: s.window(TumblingProcessingTimeWindows.of(10)).process(Contents())) as harness:
        harness.push(("a", 1))
        harness.advance_processing_time(8)
        harness.push(("a", 2))
        assert harness.get_output() == []
        harness.advance_processing_time(1)
        assert harness.get_output() == [("a", (0, 10), [1, 2])]
    with open_windows(lambda s: s.window(ProcessingTimeSessionWindows.with_gap(10)).process(Contents())) as harness:
        for _ in range(3):
            harness.push(("a", 1))
            harness.advance_processing_time(6)
        assert harness.get_output() == []
        harness.advance_processing_time(6)
        assert harness.get_output() == [("a", (0, 22), [1, 1, 1])]
        harness.snapshot()
        assert list(harness._backend.get_keys()) == []


def test_windows_that_are_not_full_and_clocks_that_have_not_come_give_nothing_at_the_end():
    for build in (
        lambda s: s.count_window(3).process(Contents()),
        lambda s: s.window(TumblingProcessingTimeWindows.of(10)).process(Contents()),
    ):
        with open_windows(build) as harness:
            harness.push(("a", 1))
            harness.end_input()
            assert harness.get_output() == []


# -- counts --


def test_count_windows():
    with open_windows(lambda s: s.count_window(2).process(Contents())) as harness:
        out = push(harness, *[("a", n, 0) for n in range(5)], ("b", 9, 0))
        assert out == [("a", (0,), [0, 1]), ("a", (1,), [2, 3])]
    with open_windows(lambda s: s.count_window(3, 1).process(Contents())) as harness:
        out = push(harness, *[("a", n, 0) for n in range(5)])
        assert out == [("a", (0,), [0, 1, 2]), ("a", (1,), [1, 2, 3]), ("a", (2,), [2, 3, 4])]
    with open_windows(lambda s: s.count_window(2, 3).process(Contents())) as harness:
        out = push(harness, *[("a", n, 0) for n in range(8)])
        assert out == [("a", (0,), [0, 1]), ("a", (1,), [3, 4]), ("a", (2,), [6, 7])]


def test_full_count_windows_leave_only_their_count():
    with open_windows(lambda s: s.count_window(2).process(Contents())) as harness:
        push(harness, *[("a", n, 0) for n in range(2000)])
        harness.snapshot()
        assert harness._backend.namespaces.num_keys == 0
        assert harness.state_of("a") == {"window-count": 2000}


# -- triggers --


def test_a_count_trigger_fires_again_and_again_and_keeps_what_came():
    with open_windows(
        lambda s: s.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).process(Contents())
    ) as harness:
        assert push(harness, *[("a", n, 0) for n in range(5)]) == [("a", (), [0, 1]), ("a", (), [0, 1, 2, 3])]


def test_a_purging_trigger_drops_what_it_fired():
    def build(stream):
        return stream.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(summed)

    with open_windows(build) as harness:
        assert push(harness, *[("a", n, 0) for n in range(7)]) == [("a", 1), ("a", 5), ("a", 9)]
        assert push(harness, ("a", 100, 0)) == [("a", 106)]


def test_the_counts_of_sessions_that_merge_are_added_before_the_record_is_counted():
    def build(stream):
        windows = stream.window(EventTimeSessionWindows.with_gap(3)).trigger(CountTrigger.of(4))
        return windows.process(Contents())

    with open_windows(build) as harness:
        assert push(harness, ("a", 1, 0), ("a", 2, 6), ("a", 3, 7)) == []
        ((_, window, values),) = push(harness, ("a", 4, 3))
        assert window == (0, 10) and sorted(values) == [1, 2, 3, 4]


def test_continuous_triggers_fire_at_full_intervals_and_at_the_end():
    def build(stream):
        windows = stream.window(TumblingEventTimeWindows.of(20)).trigger(ContinuousEventTimeTrigger.of(6))
        return windows.process(Contents())

    with open_windows(build) as harness:
        push(harness, ("a", 1, 2))
        assert advance(harness, 5) == []
        assert advance(harness, 6) == [("a", (0, 20), [1])]
        assert push(harness, ("a", 2, 9)) == []
        assert advance(harness, 13) == [("a", (0, 20), [1, 2])]
        assert advance(harness, 100) == [("a", (0, 20), [1, 2])] * 2  # at 18 and at the end
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []


def test_a_continuous_trigger_of_processing_time():
    def build(stream):
        windows = stream.window(GlobalWindows.create()).trigger(ContinuousProcessingTimeTrigger.of(10))
        return windows.reduce(summed)

    with open_windows(build, processing_time=3) as harness:
        harness.push(("a", 1))
        harness.set_processing_time(11)
        harness.push(("a", 2))
        harness.set_processing_time(21)
        assert harness.get_output() == [("a", 1), ("a", 3)]


def test_a_continuous_trigger_goes_on_where_sessions_merge():
    def build(stream):
        windows = stream.window(EventTimeSessionWindows.with_gap(20)).trigger(ContinuousEventTimeTrigger.of(10))
        return windows.reduce(summed)

    with open_windows(build) as harness:
        push(harness, ("a", 1, 5), ("a", 2, 12))
        assert advance(harness, 10) == [("a", 3)]
        assert advance(harness, 20) == [("a", 3)]
        push(harness, ("a", 4, 25))
        assert advance(harness, 30) == [("a", 7)]
        assert advance(harness, 1000) == [("a", 7)] * 2  # at 40, and at the end
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and list(harness._backend.get_keys()) == []


def test_a_delta_trigger():
    def build(stream):
        trigger = DeltaTrigger.of(10, lambda last, element: abs(element[1] - last[1]))
        return stream.window(GlobalWindows.create()).trigger(trigger).process(Contents())

    with open_windows(build) as harness:
        out = push(harness, *[("a", n, 0) for n in (0, 10, 11, 20, 22)])
        assert [values for _, _, values in out] == [[0, 10, 11], [0, 10, 11, 20, 22]]


class EveryOther(Trigger):
    def on_element(self, element, timestamp, window, ctx):
        seen = ctx.get_partitioned_state(ValueStateDescriptor("seen"))
        seen.update((seen.value() or 0) + 1)
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.FIRE if seen.value() % 2 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def clear(self, window, ctx):
        ctx.get_partitioned_state(ValueStateDescriptor("seen")).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


def test_a_users_own_trigger_with_state_over_a_restart():
    def build(stream):
        return stream.window(TumblingEventTimeWindows.of(10)).trigger(EveryOther()).process(Contents())

    with open_windows(build) as harness:
        assert push(harness, ("a", 1, 1)) == []
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as harness:
        assert push(harness, ("a", 2, 2), ("a", 3, 3)) == [("a", (0, 10), [1, 2])]
        assert advance(harness, 9) == [("a", (0, 10), [1, 2, 3])]
        harness.snapshot()
        assert list(harness._backend.get_keys()) == []


class Quarter(NamedTuple):
    year: int
    quarter: int

    def max_timestamp(self):
        return (self.year * 4 + self.quarter) * 100 + 99


class Quarters(WindowAssigner):
    window_type = Quarter

    def assign_windows(self, element, timestamp, context):
        return [Quarter(*divmod(timestamp // 100, 4))]

    def get_default_trigger(self):  # type: ignore[override]
        return EventTimeTrigger.create()

    def is_event_time(self):
        return True


def test_a_users_own_windows():
    with open_windows(lambda s: s.window(Quarters()).process(Contents())) as harness:
        push(harness, ("a", 1, 0), ("a", 2, 399), ("a", 3, 400))
        snapshot = harness.snapshot()
    with open_windows(lambda s: s.window(Quarters()).process(Contents()), snapshot=snapshot) as harness:
        assert advance(harness, 10_000) == [("a", (0, 0), [1]), ("a", (0, 3), [2]), ("a", (1, 0), [3])]


class Twice(Quarters):
    def assign_windows(self, element, timestamp, context):
        return super().assign_windows(element, timestamp, context) * 2


def test_a_window_that_is_assigned_twice_gets_the_element_twice():
    with open_windows(lambda s: s.window(Twice()).process(Contents())) as harness:
        push(harness, ("a", 1, 0))
        assert advance(harness, 1000) == [("a", (0, 0), [1, 1])]


# -- evictors --


def test_evictors():
    def fired(evictor, times=(0, 5, 9, 20)):
        def build(stream):
            return (
                stream.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(evictor).process(Contents())
            )

        with open_windows(build) as harness:
            return [values for _, _, values in push(harness, *[("a", n, time) for n, time in enumerate(times)])]

    assert fired(CountEvictor.of(1)) == [[1], [3]]
    assert fired(CountEvictor.of(1, True)) == [[0, 1], [1, 2, 3]]
    assert fired(TimeEvictor.of(11)) == [[0, 1], [3]]
    assert fired(TimeEvictor.of(12)) == [[0, 1], [2, 3]]
    assert fired(DeltaEvictor.of(2, lambda first, last: last[1] - first[1])) == [[0, 1], [2, 3]]
    nans = DeltaEvictor.of(2, lambda first, last: float("nan") if first[1] == 0 else last[1] - first[1])
    assert fired(nans)[0] == [0, 1]
    nowhere = DeltaEvictor.of(2, lambda first, last: float("nan"))
    assert fired(nowhere) == fired(DeltaEvictor.of(2, lambda first, last: 0))


class Odd(Evictor):
    def evict_before(self, elements, window, ctx):
        elements[:] = [element for element in elements if element.value[1] % 2 == 0]

    def evict_after(self, elements, window, ctx):
        del elements[:]


def test_a_users_own_evictor_with_an_incremental_function():
    def build(stream):
        return stream.window(GlobalWindows.create()).trigger(CountTrigger.of(3)).evictor(Odd()).reduce(summed)

    with open_windows(build) as harness:
        assert push(harness, *[("a", n, 0) for n in range(12)]) == [("a", 2), ("a", 4), ("a", 14), ("a", 10)]


# -- context of window functions --


class Firings(ProcessWindowFunction):
    def open(self, runtime_context):
        self.opened = True

    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        fired.update((fired.value() or 0) + 1)
        windows = context.global_state().get_list_state(ListStateDescriptor("windows"))
        if fired.value() == 1:
            windows.add(context.window().start)
        yield key, fired.value(), list(windows.get()), context.current_watermark()
        yield OutputTag("starts"), context.window().start
        context.output(OutputTag("ends"), context.window().end)

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


def test_window_state_global_state_side_outputs_and_clear():
    def build(stream):
        return stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(10).process(Firings())

    with open_windows(build) as harness:
        push(harness, ("a", 1, 1))
        assert advance(harness, 9) == [("a", 1, [0], 9)]
        assert harness.get_side_output("starts") == [0]
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as harness:
        assert push(harness, ("a", 1, 1), ("a", 1, 15)) == [("a", 2, [0], 9)]
        assert advance(harness, 100) == [("a", 1, [0, 10], 100)]
        assert harness.get_side_output("ends") == [20]
        harness.snapshot()
        assert harness._backend.contents("a") == {"global/windows": [0, 10]}
        assert harness._backend.namespaces.num_keys == 0


def test_window_functions_get_one_folded_element():
    class Named(WindowFunction):
        def apply(self, key, window, inputs):
            (folded,) = inputs
            return [(key, window.start, folded[1])]

    with open_windows(lambda s: s.window(TumblingEventTimeWindows.of(10)).reduce(summed, Named())) as harness:
        push(harness, ("a", 1, 11), ("a", 2, 12))
        assert advance(harness, 30) == [("a", 10, 3)]


def test_functions_are_opened_and_closed():
    calls = []

    class Sum(ReduceFunction):
        def open(self, ctx):
            calls.append("open reduce")

        def close(self):
            calls.append("close reduce")

        def reduce(self, value, other):
            return summed(value, other)

    class Tell(Contents):
        def open(self, ctx):
            calls.append("open window")

        def close(self):
            calls.append("close window")

    with open_windows(lambda s: s.window(TumblingEventTimeWindows.of(10)).reduce(Sum(), Tell())):
        pass
    assert calls == ["open reduce", "open window", "close reduce", "close window"]


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(10, 10), EventTimeSessionWindows.with_gap(4)],
)
@pytest.mark.parametrize("trigger", [EventTimeTrigger, PurgingTrigger.of(EventTimeTrigger.create())])
def test_elements_that_are_none_are_elements(assigner, trigger):
    def build(stream):
        keyed = StreamExecutionEnvironment().from_collection([]).key_by(lambda value: "all")
        windows = keyed.window(assigner)
        return (windows if trigger is EventTimeTrigger else windows.trigger(trigger)).aggregate(Number())

    with open_windows(build) as harness:
        harness.push_all([1, None, None, 2, None], [0, 1, 2, 3, 4])
        harness.push_watermark(100)
        assert harness.get_output() == [5]


# -- the laws --


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.window(SlidingEventTimeWindows.of(20, 5)).allowed_lateness(3).reduce(summed),
        lambda s: s.window(SlidingEventTimeWindows.of(21, 5)).aggregate(Merges()),
        lambda s: s.window(CumulativeEventTimeWindows.of(20, 5)).allowed_lateness(30).reduce(summed),
        lambda s: s.window(EventTimeSessionWindows.with_gap(6)).process(Contents()),
        lambda s: s.window(EventTimeSessionWindows.with_gap(6)).allowed_lateness(10).aggregate(Merges()),
        lambda s: s.count_window(3, 2).reduce(summed),
        lambda s: s.window(TumblingEventTimeWindows.of(10)).trigger(ContinuousEventTimeTrigger.of(4)).reduce(summed),
    ],
)
def test_the_laws_of_operators(build):
    script: list[StreamRecord | Watermark] = [
        StreamRecord(("a", 1), 3),
        StreamRecord(("b", 2), 4),
        StreamRecord(("a", 3), 9),
        Watermark(8),
        StreamRecord(("a", 4), 14),
        StreamRecord(("b", 5), 2),
        Watermark(25),
        StreamRecord(("a", 6), 24),
        StreamRecord(("b", 7), 40),
        Watermark(100),
    ]
    # Windows of several keys that end together fire in any order: timers have none after a restart.
    check_operator(lambda **options: open_windows(build, **options), script, ordered=False)


# -- refusals --


class CannotMerge(Quarters, MergingWindowAssigner):
    def merge_windows(self, windows, callback):
        raise AssertionError("never asked")


class NoMerge(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator

    def get_result(self, accumulator):
        return accumulator


class OfAll(ProcessAllWindowFunction):
    def process(self, context, elements):
        yield 1


def keyed():
    return StreamExecutionEnvironment().from_collection([("a", 1)]).key_by(lambda r: r[0])


def minute():
    return keyed().window(TumblingEventTimeWindows.of("1 minute"))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: keyed().window("1 minute"), r"needs a window assigner.*not '1 minute'"),
        (lambda: keyed().window(GlobalWindows), r"pass an instance"),
        (lambda: minute().trigger(CountTrigger), r"trigger\(\) takes a Trigger"),
        (lambda: minute().evictor(3), r"evictor\(\) takes an Evictor"),
        (lambda: minute().allowed_lateness("soon"), r"allowed_lateness\(\): 'soon' is not a duration"),
        (
            lambda: keyed().window(TumblingProcessingTimeWindows.of(5)).allowed_lateness(1),
            r"allowed_lateness\(\) is for event-time windows",
        ),
        (lambda: minute().side_output_late_data("late"), r"takes an OutputTag, not 'late'"),
        (
            lambda: keyed().window(EventTimeSessionWindows.with_gap(5)).trigger(DeltaTrigger.of(1, max)),
            r"merges windows, but DeltaTrigger\.of\(1\) cannot merge",
        ),
        (
            lambda: keyed().window(EventTimeSessionWindows.with_gap(5)).aggregate(NoMerge()),
            r"merges windows, but NoMerge cannot merge accumulators: define merge\(\)",
        ),
        (lambda: minute().reduce(NoMerge()), r"reduce\(\) got .*pass a function or ReduceFunction"),
        (lambda: minute().aggregate(max), r"aggregate\(\) got .*an AggregateFunction"),
        (lambda: minute().aggregate(NoMerge), r"pass an instance: NoMerge\(\)"),
        (lambda: minute().process(Contents), r"got the class Contents: pass an instance: Contents\(\)"),
        (lambda: minute().process(OfAll()), r"process\(\) of WindowedStream takes a ProcessWindowFunction"),
        (lambda: minute().apply(Contents()), r"apply\(\) of WindowedStream takes a WindowFunction"),
        (
            lambda: minute().reduce(max, OfAll()),
            r"reduce\(window_function=\.\.\.\) of WindowedStream takes a",
        ),
        (
            lambda: minute().apply(lambda key, window, inputs: inputs),
            r"apply\(\) of WindowedStream takes a WindowFunction",
        ),
        (lambda: keyed().count_window(0), r"the size must be an element count of at least 1, not 0"),
    ],
)
def test_wrong_uses(use, message):
    with pytest.raises(ProgramError, match=message):
        use()


def test_errors_name_operator_key_and_record_or_window():
    class Fails(ProcessWindowFunction):
        def process(self, key, context, elements):
            raise ValueError("no")

    with open_windows(lambda s: s.window(TumblingEventTimeWindows.of(10)).process(Fails())) as harness:
        harness.push(("a", 1), 3)
        with pytest.raises(
            OperatorError,
            match=r"'window.process: Fails' failed in the event time timer at 9 of TimeWindow.*of key 'a'",
        ):
            harness.push_watermark(9)

    def divide(stream):
        return stream.window(TumblingEventTimeWindows.of(10)).reduce(lambda value, other: 1 / 0)

    at_the_record = pytest.raises(OperatorError, match=r"failed at the record \('a', 2\)")
    with open_windows(divide) as harness, at_the_record:
        harness.push_all([("a", 1), ("a", 2)], [1, 2])


def test_state_of_a_window_that_may_merge_is_refused():
    with open_windows(lambda s: s.window(EventTimeSessionWindows.with_gap(5)).process(Firings())) as harness:
        harness.push(("a", 1), 3)
        with pytest.raises(ProgramError, match=r"window_state\(\) is not available for merging windows"):
            harness.push_watermark(100)


def test_windows_over_all_of_a_stream_and_behind_each_other():
    env = StreamExecutionEnvironment()
    env.set_parallelism(3)

    class Most(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.get_current_key(), value[1], ctx.timestamp()

    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])
    words = env.from_collection([("a", 1), ("b", 2), ("a", 11), ("a", 12)]).assign_timestamps_and_watermarks(at)
    sums = words.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(10)).reduce(summed)
    most = sums.window_all(TumblingEventTimeWindows.of(10)).reduce(
        lambda value, other: max(value, other, key=lambda r: r[1])
    )
    assert most.execute_and_collect() == [("b", 2), ("a", 23)]
    timed = sums.key_by(lambda r: r[0]).process(Most())
    assert sorted(timed.execute_and_collect()) == [("a", 1, 9), ("a", 23, 19), ("b", 2, 9)]


# -- the quick way --


@pytest.mark.parametrize("lateness", [0, 7])
def test_tumbling_windows_are_the_same_state_on_both_ways(lateness):
    def quick(stream):
        return stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(lateness).reduce(summed)

    def general(stream):
        windows = stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(lateness)
        return windows.trigger(ByHand()).reduce(summed)

    script: list[tuple[Any, int | None]] = [
        (("a", 1), 3),
        (("b", 2), 14),
        (None, 9),
        (("a", 4), 5),
        (("a", 8), 12),
        (None, 15),
        (("b", 16), 11),
        (None, 40),
    ]
    outcomes = []
    for ways in [(quick, quick), (general, general), (quick, general), (general, quick)]:
        snapshot = None
        out: list[Any] = []
        for number, (record, time) in enumerate(script):
            with open_windows(ways[number % 2], snapshot=snapshot) as harness:
                if record is None:
                    harness.push_watermark(time or 0)
                else:
                    harness.push(record, time)
                out += sorted(harness.get_records())
                snapshot = harness.snapshot()
                assert isinstance(harness.operator, TumblingWindowOperator) == (ways[number % 2] is quick)
        outcomes.append(out)
    assert outcomes[0] == outcomes[1] == outcomes[2] == outcomes[3]
    assert len(outcomes[0]) == (4 if lateness else 3)


class ByHand(EventTimeTrigger):
    """The default trigger as a subclass, so that the operator calls it for each element."""


def test_a_shorter_lateness_ends_windows_that_wait_for_late_elements():
    def windows(lateness):
        return lambda stream: stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(lateness).reduce(summed)

    with open_windows(windows(100)) as harness:
        harness.push_all([("a", 1), ("b", 2)], [3, 13])
        harness.push_watermark(9)
        assert harness.get_output() == [("a", 1)]
        snapshot = harness.snapshot()
    with open_windows(windows(0), snapshot=snapshot) as harness:
        assert harness.num_keyed_state_entries() == 1
        harness.push(("a", 5), 4)  # late now
        harness.push_watermark(30)
        assert harness.get_output() == [("b", 2)]
        harness.snapshot()
        assert harness.num_keyed_state_entries() == harness.num_event_time_timers() == 0


def test_results_of_a_window_have_one_order_in_warm_and_in_restored_tasks():
    def windows(stream):
        return stream.window(TumblingEventTimeWindows.of(10)).allowed_lateness(5).reduce(summed)

    def epoch(harness, keys, watermark):
        harness.clear_output()
        harness.push_all([(key, 1) for key in keys], [5] * len(keys))
        harness.push_watermark(watermark)
        return harness.get_output()

    script = [("dacbfe", 3), ("ab", 4), ("hag", 5), ("c", 6), ("zb", 9), ("f", 11), ("", 20)]
    with open_windows(windows) as warm:
        expected = []
        for keys, watermark in script:
            expected.append(epoch(warm, keys, watermark))
            warm.snapshot()
    assert [len(results) for results in expected] == [0, 0, 0, 0, 9, 1, 0]
    snapshot = None
    for (keys, watermark), results in zip(script, expected):
        with open_windows(windows, snapshot=snapshot) as cold:
            assert epoch(cold, keys, watermark) == results
            snapshot = cold.snapshot()
