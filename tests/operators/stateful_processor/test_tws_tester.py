"""``TwsTester``: tests read and write each kind of state, push frames, and move the clocks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.errors import IllegalArgumentException, PySparkAssertionError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import OperatorError, ProgramError
from pillarbox.testing import TwsTester


class Basket(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n INT")
        self.articles = handle.getListState("articles", "name STRING")
        self.counts = handle.getMapState("counts", "name STRING", "n INT")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            (total,) = self.total.get() or (0,)
            self.total.update((total + row.n,))
            self.articles.appendValue((row.name,))
            (count,) = self.counts.getValue((row.name,)) or (0,)
            self.counts.updateValue((row.name,), (count + row.n,))
        yield Row(total=self.total.get()[0], articles=[name for (name,) in self.articles.get()])


class Frames(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.seen = handle.getValueState("seen", "n INT")

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.seen.get() or (0,)
        for frame in rows:
            n += len(frame)
        self.seen.update((n,))
        self.handle.registerTimer(20)
        yield pd.DataFrame({"key": [key[0]], "n": [n]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"key": [key[0]], "n": [-self.seen.get()[0]]})


def test_state_that_a_test_has_written_is_read_by_the_processor():
    tester = TwsTester(Basket())
    tester.updateValueState("total", "ann", (5,))
    tester.updateListState("articles", "ann", [("pear",)])
    tester.updateMapState("counts", "ann", {("pear",): (5,)})
    assert tester.test("ann", [Row(name="fig", n=2)]) == [Row(total=7, articles=["pear", "fig"])]
    assert tester.peekValueState("total", "ann") == (7,)
    assert tester.peekListState("articles", "ann") == [("pear",), ("fig",)]
    assert tester.peekMapState("counts", "ann") == {("pear",): (5,), ("fig",): (2,)}


def test_a_written_state_replaces_the_earlier_one():
    tester = TwsTester(Basket())
    tester.test("ann", [Row(name="fig", n=2)])
    tester.updateListState("articles", "ann", [("pear",)])
    tester.updateMapState("counts", "ann", {("pear",): (1,)})
    assert tester.peekListState("articles", "ann") == [("pear",)]
    assert tester.peekMapState("counts", "ann") == {("pear",): (1,)}


def test_state_belongs_to_its_key_and_is_deleted():
    tester = TwsTester(Basket())
    tester.test("ann", [Row(name="fig", n=2)])
    assert tester.peekValueState("total", "bob") is None
    assert tester.peekListState("articles", "bob") == []
    assert tester.peekMapState("counts", "bob") == {}
    for name in ("total", "articles", "counts"):
        tester.deleteState(name, "ann")
    assert tester.peekValueState("total", "ann") is None
    assert tester.peekListState("articles", "ann") == []
    assert tester.peekMapState("counts", "ann") == {}
    assert tester.test("ann", [Row(name="fig", n=1)]) == [Row(total=1, articles=["fig"])]


@pytest.mark.parametrize("call", [lambda t: t.peekValueState("nothing", "a"), lambda t: t.peekListState("total", "a")])
def test_a_state_that_is_not_declared_so_is_refused(call):
    with pytest.raises(PySparkAssertionError, match="has not been initialized"):
        call(TwsTester(Basket()))


def test_frames_drop_late_rows_and_timers_emit_frames():
    tester: Any = TwsTester(Frames(), timeMode="EventTime", eventTimeExtractor=lambda row: row["time"])
    out = tester.testInPandas("ann", pd.DataFrame({"time": [1, 11]}))
    assert out.to_dict("list") == {"key": ["ann"], "n": [2]}
    assert tester.setWatermark(10).empty
    assert tester.testInPandas("ann", pd.DataFrame({"time": [10, 11]}))["n"].tolist() == [3]
    assert tester.setWatermark(30)["n"].tolist() == [-3]


def test_a_clock_only_moves_forward_and_only_in_its_mode():
    tester = TwsTester(Frames(), timeMode="ProcessingTime")
    tester.setProcessingTime(10)
    with pytest.raises(IllegalArgumentException, match="must move forward"):
        tester.setProcessingTime(10)
    with pytest.raises(PySparkValueError, match="setWatermark"):
        tester.setWatermark(10)


def test_modes_that_do_not_fit_are_refused():
    with pytest.raises(ProgramError, match="timeMode= must be None, ProcessingTime or EventTime"):
        TwsTester(Basket(), timeMode="Sometimes")
    with pytest.raises(PySparkValueError, match="eventTimeExtractor"):
        TwsTester(Basket(), timeMode="EventTime")
    with pytest.raises(ProgramError, match="not both"):
        TwsTester(Basket(), initialStateRow=[], initialStatePandas=[])


class Count(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n INT")

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.first,))

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            if row.timer is not None:
                self.handle.registerTimer(row.timer)
        self.count.update((n,))
        yield Row(key=key[0], n=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(key=key[0], n=-self.count.get()[0])
        self.count.clear()


@pytest.mark.parametrize("key", ["@#$%", 1, (1, 2), None])
def test_a_key_may_have_any_type_and_no_rows(key):
    tester = TwsTester(Count())
    assert tester.test(key, []) == [Row(key=key, n=0)]
    assert tester.test(key, [Row(timer=None), Row(timer=None)]) == [Row(key=key, n=2)]
    assert tester.peekValueState("count", key) == (2,)


def test_an_initial_state_is_there_before_the_first_rows():
    tester = TwsTester(Count(), initialStateRow=[("ann", Row(first=10)), ("bob", Row(first=20))])
    assert [tester.peekValueState("count", key) for key in ("ann", "bob", "eve")] == [(10,), (20,), None]
    assert tester.test("ann", [Row(timer=None)]) == [Row(key="ann", n=11)]
    assert TwsTester(Count(), initialStateRow=[]).test("ann", [Row(timer=None)]) == [Row(key="ann", n=1)]


def test_a_state_that_is_not_declared_cannot_be_deleted():
    with pytest.raises(PySparkAssertionError, match="has not been initialized"):
        TwsTester(Count()).deleteState("nothing", "ann")


def test_timers_of_several_keys_expire_in_their_order():
    tester = TwsTester(Count(), timeMode="ProcessingTime")
    tester.test("ann", [Row(timer=30)])
    tester.test("bob", [Row(timer=20), Row(timer=40)])
    assert tester.setProcessingTime(19) == []
    assert tester.setProcessingTime(30) == [Row(key="bob", n=-2), Row(key="ann", n=-1)]
    assert tester.peekValueState("count", "ann") is None


def test_a_timer_that_is_due_is_called_in_the_same_micro_batch():
    """Unlike Spark's tester, which refuses to register such a timer."""
    tester = TwsTester(Count(), timeMode="EventTime", eventTimeExtractor=lambda row: 100)
    tester.setWatermark(10)
    assert tester.test("ann", [Row(timer=10)]) == [Row(key="ann", n=1), Row(key="ann", n=-1)]
    with pytest.raises(OperatorError, match="INVALID_TIME_MODE"):
        TwsTester(Count()).test("ann", [Row(timer=10)])
