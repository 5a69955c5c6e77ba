"""The operator runs a function for ``applyInPandasWithState``. Expectations are from Spark 4.3."""

from __future__ import annotations

import pandas as pd
import pytest

from pillarbox import OperatorError
from tests.operators.stateful_processor.micro_batches import MicroBatches


def batches_of(function, mode="eventtime", **arguments):
    return MicroBatches(function, "k STRING, v INT", mode, state="n INT, s STRING", **arguments)


def emitted(key, value):
    return pd.DataFrame({"k": [key], "v": [value]})


def test_the_state_of_a_key_is_kept_and_removed():
    def count(key, frames, state):
        n = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
        if n > 2:
            state.remove()
        else:
            state.update((n, key[0]))
        yield emitted(f"{key} {state.getOption}", n)

    batches = batches_of(count, "none")
    assert batches.run([("b", 0, 1), ("a", 0, 1), ("b", 0, 1)]) == [("('a',) (1, 'a')", 1), ("('b',) (2, 'b')", 2)]
    assert batches.run([("b", 0, 1)]) == [("('b',) None", 3)]
    assert batches.run([("b", 0, 1)]) == [("('b',) (1, 'b')", 1)]


def times_out(key, frames, state):
    rows = [value for frame in frames for value in frame["v"]]
    before = state.getOption
    if state.hasTimedOut:
        if before == (1, None):
            state.remove()
        elif before == (2, None):
            state.update((1, None))
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 10)
    elif rows[-1]:
        state.update((rows[-1], None))
        state.setTimeoutTimestamp(1000)
    yield emitted(f"{state.hasTimedOut} {before}", len(rows))


def test_a_key_that_times_out_has_its_times_in_the_session_s_zone():
    def silent(key, frames, state):
        list(frames)
        state.update((1, None))
        if not state.hasTimedOut:
            state.setTimeoutTimestamp(1)
        yield emitted(str(key[0]), 0)

    batches = batches_of(silent, key=("t",), zone="America/New_York")
    rows = [("a", 1_700_000_000_000, 1)]
    assert batches.run(rows, 0) == batches.run([], 1, watermark=5) == [("2023-11-14 17:13:20", 0)]


@pytest.mark.parametrize(("clock", "mode"), [("watermark", "eventtime"), ("time", "processingtime")])
def test_a_key_times_out_when_the_clock_is_past_it(clock, mode):
    def function(key, frames, state):
        if mode == "processingtime" and not state.hasTimedOut:
            list(frames)
            state.setTimeoutDuration(1000)
            state.update((1, None))
            return iter(())
        return times_out(key, frames, state)

    batches = batches_of(function, mode, late=True)
    batches.run([("a", 5, 1)], 0)
    assert batches.run([], 1, **{clock: 1000}) == []
    assert batches.operator.next_wake_up == 1001
    assert batches.run([], 2, **{clock: 1001}) == [("True (1, None)", 0)]
    assert batches.run([], 3, **{clock: 2000}) == []
    assert batches.harness.get_keys() == []


def test_a_timeout_may_set_the_next_one():
    batches = batches_of(times_out, late=True)
    batches.run([("a", 5, 2)], 0)
    assert batches.run([], 1, watermark=1001) == [("True (2, None)", 0)]
    assert batches.operator.next_wake_up == 1012
    assert batches.run([], 2, watermark=1012) == [("True (1, None)", 0)]


def test_a_call_that_changes_nothing_leaves_state_and_timeout_as_they_were():
    """As in Spark's Python API, this also applies to a key whose timeout has fired."""
    batches = batches_of(times_out, late=True)
    batches.run([("a", 5, 3)], 0)
    assert batches.run([("a", 5, 0)], 1) == [("False (3, None)", 1)]
    for number in (2, 3):
        assert batches.run([], number, watermark=1001) == [("True (3, None)", 0)]


def test_an_update_without_a_timeout_ends_the_one_before():
    def function(key, frames, state):
        rows = [value for frame in frames for value in frame["v"]]
        state.update((rows[-1], None))
        if rows[-1] == 1:
            state.setTimeoutTimestamp(1000)
        return iter(())

    batches = batches_of(function, late=True)
    batches.run([("a", 5, 1)], 0)
    assert batches.operator.next_wake_up == 1001
    batches.run([("a", 5, 2)], 1)
    assert batches.operator.next_wake_up is None


def test_frames_have_the_types_of_columns_and_are_cut():
    def types(key, frames, state):
        frames_text = [f"{len(frame)} {frame['v'].dtype} {list(frame.index)}" for frame in frames]
        yield emitted(f"{type(key[0]).__name__} {frames_text}", 0)

    rows = [("a", 5, 1), ("a", 5, 2), ("a", 5, 3), ("b", 5, None)]
    batches = batches_of(types, "none", pandas=2, key=("v", "k"))
    batches = batches_of(types, "none", pandas=2)
    assert batches.run(rows) == [
        ("str ['2 int32 [0, 1]', '1 int32 [0]']", 0),
        ("str ['1 float64 [0]']", 0),
    ]


@pytest.mark.parametrize(
    ("results", "error"),
    [
        (emitted("a", 1), r"\[UDF_RETURN_TYPE\].*iterable of pandas.DataFrame"),
        (5, r"\[UDF_RETURN_TYPE\].*iterable"),
        ([5], r"\[UDF_RETURN_TYPE\].*iterator of pandas.DataFrame.*iterator of int"),
        ([pd.DataFrame({"k": ["a"]})], r"\[RESULT_COLUMN_SCHEMA_MISMATCH\].*2.*1"),
    ],
)
def test_wrong_results_are_spark_s_errors(results, error):
    with pytest.raises(OperatorError, match=error):
        batches_of(lambda key, frames, state: results, "none").run([("a", 0, 1)])


def test_frames_of_results_are_converted_as_pandas_udfs_are():
    frames = [
        emitted("a", 1.0),
        emitted("b", None),
        pd.DataFrame({"v": [3], "k": ["c"]}),
        pd.DataFrame(),
        emitted("d", True),
    ]
    batches = batches_of(lambda key, rows, state: frames, "none")
    assert batches.run([("x", 0, 1)]) == [("a", 1), ("b", None), ("c", 3), ("d", 1)]


def test_results_may_be_empty_or_have_other_keys_and_the_state_may_stay_unused():
    def function(key, frames, state):
        assert not state.exists and sum(map(len, frames)) == 1
        yield pd.DataFrame({"k": [], "v": []})
        yield pd.DataFrame({"k": [None, f"{key[0]} and more"], "v": [1, 2]})

    batches = batches_of(function, "none")
    for _ in range(2):
        assert batches.run([("a", 0, 1)]) == [(None, 1), ("a and more", 2)]
