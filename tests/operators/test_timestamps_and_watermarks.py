from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    OperatorError,
    ProgramError,
    StreamExecutionEnvironment,
    WatermarkGenerator,
    WatermarkStrategy,
)
from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import row
from tests.support.nodes import node, run


def stamping(strategy):
    return node(TimestampsAndWatermarksOperator, "timestamps", strategy)


BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(10)


def test_timestamps_of_functions_and_columns():
    assigner = BOUNDED.with_timestamp_assigner(lambda value: value.at)
    column = BOUNDED.with_timestamp_assigner("at")
    rows = [row(at=100, n=1), row(at=90, n=2), row(at=120, n=3)]
    batch = pa.RecordBatch.from_arrays([pa.array([100, 90, 120]), pa.array([1, 2, 3])], names=["at", "n"])
    for strategy in (assigner, column):
        for records in (Records(rows), Records([*rows], [1, 2, 3]), ArrowRecords(batch)):
            with Harness(stamping(strategy)) as harness:
                harness.operator.process_records(records)
                assert harness.get_records() == [(rows[0], 100), (rows[1], 90), (rows[2], 120)]
                assert harness.get_watermarks() == [109]
                harness.push(row(at=50, n=4))
                assert harness.get_watermarks() == [109]  # never back
                harness.push(row(at=130, n=4))
                assert harness.get_watermarks() == [109, 119]


def test_an_assigner_is_told_the_timestamp_so_far():
    strategy = BOUNDED.with_timestamp_assigner(lambda value, before: 7 if before == MIN_TIMESTAMP else before + value)
    assert run(stamping(strategy), [1, 2], [None, 40]) == [(1, 7), (2, 42)]


def test_without_assigner_the_timestamps_stay():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        assert (harness.get_records(), harness.get_watermarks()) == ([(1, 100)], [89])
        with pytest.raises(ProgramError, match="records have no timestamps: call"):
            harness.push(1)


def test_watermarks_from_upstream_count_only_at_the_end():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        harness.push_watermark(1000)
        harness.push_watermark(MAX_WATERMARK)
        assert harness.get_watermarks() == [89, MAX_WATERMARK]


class Punctuated(WatermarkGenerator):
    def on_event(self, event, timestamp, output):
        if event == "mark":
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output):
        pass


def test_a_generator_may_emit_between_two_records():
    with Harness(stamping(WatermarkStrategy.for_generator(Punctuated))) as harness:
        harness.push_all(["a", "mark", "b", "mark", "c"], [1, 2, 3, 1, 5])
        first, *rest = harness.get_elements()
    assert first == WatermarkStatus(False)
    assert rest == [("a", 1), ("mark", 2), Watermark(2), ("b", 3), ("mark", 1), ("c", 5)]


def test_timestamps_that_are_none_are_named():
    for strategy, text in (
        (BOUNDED.with_timestamp_assigner(lambda value: "soon"), "the timestamp assigner failed at the record 'x'"),
        (BOUNDED.with_timestamp_assigner("at"), "no timestamp in field 'at' of the record 'x'"),
    ):
        with pytest.raises(OperatorError, match=text):
            run(stamping(strategy), ["x"])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], names=["at"])
    for column, error, text in (
        ("at", OperatorError, "timestamp column 'at': the timestamp at row 1 is null"),
        ("when", ProgramError, "no timestamp column 'when'; the columns are at"),
    ):
        with Harness(stamping(BOUNDED.with_timestamp_assigner(column))) as harness, pytest.raises(error, match=text):
            harness.operator.process_records(ArrowRecords(batch))


def test_each_epoch_of_a_source_starts_anew():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        harness.operator.begin_epoch()
        harness.push(1, 50)
        assert harness.get_watermarks() == [89, 39]


def test_no_watermarks_asks_for_no_timestamps():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1, 2]).assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks())
    assert stream.execute_and_collect() == [1, 2]


# -- silence behind a shuffle --


SILENT = BOUNDED.with_timestamp_assigner(lambda value: value).with_idleness(100)


def epochs(script, *, made_anew):
    operator = stamping(SILENT)
    outputs, now, harness, snapshot = [], 1000, Harness(operator, processing_time=1000), None
    for (step, values), anew in zip(script, made_anew):
        now += step
        if anew:
            harness.close()
            harness = Harness(operator, processing_time=now, snapshot=snapshot)
        harness.set_processing_time(now)
        for value in values:
            harness.push(value)
        snapshot = harness.snapshot()
        outputs.append((harness.get_elements(), harness.operator.next_wake_up))
        harness.clear_output()
    harness.close()
    return outputs


def test_a_subtask_that_never_had_a_record_is_silent_since_its_first_epoch():
    script = [(0, []), (60, []), (41, []), (500, []), (5, [20])]
    for made_anew in ([False] * 5, [False, *[True] * 4]):
        outputs = epochs(script, made_anew=made_anew)
        assert outputs[:2] == [([], 1101)] * 2
        assert outputs[2:4] == [([WatermarkStatus(True)], None), ([], None)]
        assert outputs[4] == ([(20, 20), WatermarkStatus(False), Watermark(9)], 1707)


@given(
    st.lists(st.tuples(st.integers(0, 70), st.lists(st.integers(0, 300), max_size=2)), min_size=1, max_size=12),
    st.data(),
)
def test_a_task_that_is_made_anew_says_what_the_one_before_would_have_said(script, data):
    anew = [False, *data.draw(st.lists(st.booleans(), min_size=len(script) - 1, max_size=len(script) - 1))]
    assert epochs(script, made_anew=anew) == epochs(script, made_anew=[False] * len(script))


def test_no_statuses_after_the_end_of_the_data():
    with Harness(stamping(SILENT)) as harness:
        harness.push(50)
        harness.end_input()
        for _ in range(3):
            harness.advance_processing_time(1000)
            harness.snapshot()
        assert harness.get_elements()[-1] == Watermark(MAX_WATERMARK)


def test_a_checkpoint_of_former_versions_does_not_know_the_status():
    with Harness(stamping(SILENT)) as harness:
        harness.push(5)
        harness.operator.restore_event_time(None)
        harness.clear_output()
        harness.push(50)
        assert harness.get_elements() == [WatermarkStatus(False), (50, 50), Watermark(39)]


def test_with_idleness_and_without_it_a_checkpoint_is_the_same():
    for before, after in ((BOUNDED, SILENT), (SILENT, BOUNDED)):
        with Harness(stamping(before.with_timestamp_assigner(lambda value: value)), processing_time=1000) as harness:
            harness.push(50)
            snapshot = harness.snapshot()
        strategy = after.with_timestamp_assigner(lambda value: value)
        with Harness(stamping(strategy), processing_time=5000, snapshot=snapshot) as harness:
            harness.push(45)
            harness.push(70)
            assert harness.get_elements() == [(45, 45), (70, 70), Watermark(59)]


# -- a user's watermark generator --


class Own(WatermarkGenerator):
    def __init__(self, act=lambda event, output: None, periodic=lambda output: None):
        self.act, self.periodic = act, periodic

    def on_event(self, event, timestamp, output):
        self.act(event, output)

    def on_periodic_emit(self, output):
        self.periodic(output)


def own(*args):
    strategy = WatermarkStrategy.for_generator(lambda: Own(*args)).with_timestamp_assigner(lambda value: value)
    return node(TimestampsAndWatermarksOperator, "times", strategy)


@pytest.mark.parametrize("watermark", [1.5, None, 2**70, "5", True, math.nan], ids=repr)
def test_a_watermark_that_is_none_is_named(watermark):
    with (
        Harness(own(lambda event, output: event == 2 and output.emit_watermark(watermark))) as harness,
        pytest.raises(OperatorError) as failure,
    ):
        harness.push_all([1, 2, 3])
    assert "operator 'times': the watermark generator failed at the record 2" in str(failure.value)
    assert f"{watermark!r} ({type(watermark).__name__}) is not a watermark" in str(failure.value)


def test_a_watermark_may_be_numpys_int():
    with Harness(own(lambda event, output: output.emit_watermark(np.int64(event)))) as harness:
        harness.push(5)
        assert harness.get_watermarks() == [5] and type(harness.get_watermarks()[0]) is int


def test_errors_of_generators_are_named():
    with (
        Harness(own(lambda event, output: {}[event])) as harness,
        pytest.raises(
            OperatorError, match="operator 'times': the watermark generator failed at the record 7: KeyError: 7"
        ),
    ):
        harness.push_all([7, 8])
    with (
        Harness(own(lambda event, output: None, lambda output: 1 / 0)) as harness,
        pytest.raises(
            OperatorError,
            match=r"operator 'times' failed in its watermark generator's on_periodic_emit\(\): ZeroDivisionError",
        ),
    ):
        harness.push_all([7, 8])
    with (
        Harness(own(lambda event, output: None, lambda output: 1 / 0)) as harness,
        pytest.raises(OperatorError, match=r"on_periodic_emit\(\): ZeroDivisionError"),
    ):
        harness.snapshot()
    with pytest.raises(OperatorError, match="operator 'times' failed in creating its watermark generator"):
        Harness(node(TimestampsAndWatermarksOperator, "times", WatermarkStrategy.for_generator(object)))  # type: ignore[arg-type]


def test_a_status_does_not_overtake_the_records_before_it():
    def act(event, output):
        if event == 2:
            output.mark_idle()
        if event == 4:
            output.mark_active()

    idle, active = WatermarkStatus(True), WatermarkStatus(False)
    with Harness(own(act)) as harness:
        harness.push_all([1, 2, 3, 4, 5])
        assert harness.get_elements() == [active, (1, 1), (2, 2), idle, (3, 3), (4, 4), active, (5, 5)]
