"""The counted work of a row interval join is proportional to a record's pairs, not to the key's state.

State contains the records that may still match, and few others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox._elements.records import ArrowRecords
from pillarbox._operators.columnar.joins.join_side import JoinSide
from pillarbox._operators.columnar.joins.process_join import ColumnarProcessJoinOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.joins.interval_join import Interval, IntervalJoinOperator
from pillarbox._state.descriptors import MapState
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import KeyedTwoInputStreamOperatorTestHarness

RECORDS = 400


class Time(int):
    """An event time that counts its comparisons."""

    compared = 0

    def __lt__(self, other):
        Time.compared += 1
        return int(self) < other

    def __le__(self, other):
        Time.compared += 1
        return int(self) <= other

    def __gt__(self, other):
        Time.compared += 1
        return int(self) > other

    def __ge__(self, other):
        Time.compared += 1
        return int(self) >= other

    __hash__ = int.__hash__


class Counting:
    """A map state that counts rewritten records."""

    def __init__(self, state: MapState[Any, Any]) -> None:
        self.state = state
        self.copied = 0

    def put(self, key: Any, value: Any) -> None:
        if value is not self.state.get(key):
            self.copied += len(value)
        self.state.put(key, value)

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class Join:
    def __init__(self, lower: int, upper: int) -> None:
        keyings = (Keying(key_of, "join"), Keying(key_of, "join"))
        make = partial(IntervalJoinOperator, function=pair, keyings=keyings, interval=Interval(lower, upper))
        self.harness = KeyedTwoInputStreamOperatorTestHarness(
            ChainNode("join", "join", OperatorFactory(make, keyed=True))
        )
        self.states: list[Counting] = []
        operator: Any = self.harness.operator
        for side in operator.inputs:
            side.state = Counting(side.state)
            self.states.append(side.state)
        Time.compared = 0

    @property
    def cost(self) -> int:
        return Time.compared + sum(state.copied for state in self.states)


def key_of(value: Any) -> str:
    return "k"


def pair(left: Any, right: Any, ctx: Any) -> Iterator[Any]:
    yield left, right


# The parameters contain the number of records with partners.
@pytest.mark.parametrize(
    ("lower", "upper", "times", "partner"),
    [
        pytest.param(0, 10, [5] * RECORDS, 100, id="of one millisecond"),
        pytest.param(0, 10, [*range(0, 20 * RECORDS, 20)], 50, id="in order"),
        pytest.param(0, 10, [*range(20 * RECORDS, 0, -20)], 50, id="against the order"),
    ],
)
def test_records_that_wait(lower, upper, times, partner):
    join = Join(lower, upper)
    join.harness.push2("partner", Time(partner))
    for number, time in enumerate(times):
        join.harness.push1(number, Time(time))
    for number in range(RECORDS):
        join.harness.push2(number, Time(10**9))  # finds nothing, and is found by nothing
    assert join.cost < 120 * 2 * RECORDS
    assert len(join.harness.get_output()) == sum(lower <= partner - time <= upper for time in times)


@pytest.mark.parametrize(("lower", "upper"), [(0, RECORDS), (RECORDS, RECORDS), (-RECORDS, -RECORDS), (-5, RECORDS)])
def test_records_that_go(lower, upper):
    join = Join(lower, upper)
    for time in range(5 * RECORDS):
        join.harness.push1(time, Time(time))
        join.harness.push2(-1, Time(time)) if time % 100 == 0 else None
        join.harness.push_watermark(time)
    assert join.cost < 120 * 5 * RECORDS + 2 * len(join.harness.get_output())
    # They expire slightly after their last possible partner.
    limit = max(upper, 0) + max(abs(lower), abs(upper), upper - lower) // 8 + 1
    assert len(join.harness.state_of("k")["left"]) <= limit + 1
    join.harness.push_watermark(20 * RECORDS)
    assert join.harness.state_of("k") == {}


FAR = 2**62
TIMES = st.one_of(st.integers(-50, 300), st.sampled_from([10_000, FAR, 2**63 - 1]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.lists(TIMES, min_size=1, max_size=5)),
        st.tuples(st.just("watermark"), st.just(""), st.lists(st.integers(-50, 400), min_size=1, max_size=1)),
    ),
    max_size=40,
)
INTERVALS = st.tuples(st.integers(-60, 60), st.integers(0, 60)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))


def one_side_ahead(ahead, behind, first):
    steps = [(ahead, "a", [first]), ("watermark", "", [0])]
    for time in range(0, 150, 10):
        steps += [(behind, "a", [time, time + 5]), (ahead, "b", [first]), ("watermark", "", [time])]
    return steps


@pytest.mark.slow("two joins, and a snapshot after each step")
@given(st.booleans(), STEPS, INTERVALS)
@example(False, one_side_ahead("left", "right", 300), (-10, 10))
@example(False, one_side_ahead("right", "left", 300), (-10, 10))
@example(False, one_side_ahead("left", "right", FAR), (-10, 10))
@example(False, one_side_ahead("right", "left", FAR), (5, 9))
@example(True, one_side_ahead("left", "right", 300), (-10, 10))
@example(True, one_side_ahead("right", "left", FAR), (-9, -5))
def test_a_join_keeps_what_may_find_a_partner_and_little_else(by_columns, steps, interval):
    lower, upper = interval
    # Rows are stored until event time has passed them, whenever their last partner may arrive. They share a timer for
    # their removal.
    waits = {"left": upper, "right": -lower}
    if not by_columns:
        waits = {side: max(wait, 0) for side, wait in waits.items()}
    step = max(1, max(upper - lower, upper, -lower) // 8)
    on_time: dict[str, list[int]] = {"left": [], "right": []}
    watermark = -(2**63)
    with KeyedTwoInputStreamOperatorTestHarness(columnar(interval) if by_columns else by_rows(interval)) as harness:
        for what, key, times in steps:
            if what == "watermark":
                watermark = max(watermark, *times)
                harness.push_watermark(watermark)
            else:
                on_time[what] += [time for time in times if time >= watermark]
                records = rows_of_columns(key, times) if by_columns else None
                for time in times if records is None else ():
                    (harness.push1 if what == "left" else harness.push2)((key, time), time)
                if records is not None:
                    harness.push_records(records, ["left", "right"].index(what))
            if by_columns:
                harness.snapshot()  # which is when rows are joined, and dropped
            for side, wait in waits.items():
                needed = sum(time + wait >= watermark for time in on_time[side])
                rows = kept_by(harness, side, by_columns)
                if by_columns:
                    assert needed <= rows <= 2 * needed
                elif what == "watermark":
                    assert needed <= rows <= sum(time + wait + step >= watermark for time in on_time[side])


def by_rows(interval):
    keyings = (Keying(first_of, "join"), Keying(first_of, "join"))
    make = partial(IntervalJoinOperator, function=pair, keyings=keyings, interval=Interval(*interval))
    return ChainNode("join", "join", OperatorFactory(make, keyed=True))


def columnar(interval):
    side = JoinSide(spark.StructType().add("k", "string"), ("k",), "", joins_nulls=True)
    make = partial(
        ColumnarProcessJoinOperator,
        keying=Keying("k", "join"),
        sides=(side, side),
        interval=Interval(*interval),
        function=pair,
    )
    return ChainNode("join", "join", OperatorFactory(make, keyed=True))


def first_of(value):
    return value[0]


def rows_of_columns(key, times):
    return ArrowRecords(pa.RecordBatch.from_pydict({"k": [key] * len(times)}), np.array(times))


def kept_by(harness, side, by_columns):
    if by_columns:
        rows = harness.operator.inputs[["left", "right"].index(side)]
        return sum(map(len, rows.segments))
    every = [harness.state_of(key).get(side, {}) for key in "ab"]
    return sum(len(values) for entries in every for values in entries.values())
