"""What an interval join by rows does for a record, counted: it goes by the record's pairs, not by what the key has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.joins.interval_join import Interval, IntervalJoinOperator
from pillarbox._state.descriptors import MapState
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import KeyedTwoInputStreamOperatorTestHarness

RECORDS = 400


class Time(int):
    """An event time that counts what it is compared with."""

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
    """A map state that counts the records in values that are put in anew."""

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
    """A harness, and what was counted in it."""

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
        """How many times were compared, and records copied."""
        return Time.compared + sum(state.copied for state in self.states)


def key_of(value: Any) -> str:
    return "k"


def pair(left: Any, right: Any, ctx: Any) -> Iterator[Any]:
    yield left, right


# How many records find partners where is said with each: all are of one key.
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
    # They are gone a little later than their last partner might have come.
    kept = max(upper, 0) + max(abs(lower), abs(upper), upper - lower) // 8 + 1
    assert len(join.harness.state_of("k")["left"]) <= kept + 1
    join.harness.push_watermark(20 * RECORDS)
    assert join.harness.state_of("k") == {}
