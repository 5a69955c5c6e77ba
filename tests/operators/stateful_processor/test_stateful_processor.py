"""The operator runs a ``StatefulProcessor``: calls, timers, states, results. Expectations are from Spark 4.3."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import OperatorError, ProgramError
from pillarbox.testing import TwsTester
from tests.operators.stateful_processor.micro_batches import MicroBatches


class Base(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        return iter(())


class Counts(Base):
    def init(self, handle):
        self.count = handle.getValueState("count", "n INT")
        self.calls = 0

    def handleInputRows(self, key, rows, timerValues):
        self.calls += 1
        n = (self.count.get() or (0,))[0] + len([row.v for row in rows])
        self.count.update((n,))
        yield Row(v=n, k=f"{key[0]} {self.calls}")


def test_all_rows_of_a_key_are_one_call_and_keys_come_in_order():
    batches = MicroBatches(Counts())
    rows = [("b", 0, 1), (None, 0, 1), ("ä", 0, 1), ("a", 0, 2), ("b", 0, 3)]
    assert batches.run(rows) == [("None 1", 1), ("a 2", 1), ("b 3", 2), ("ä 4", 1)]


def test_each_micro_batch_has_a_processor_of_its_own_and_the_state_of_the_one_before():
    batches = MicroBatches(Counts())
    assert batches.run([("a", 0, 1)]) == [("a 1", 1)]
    assert batches.run([("a", 0, 1)]) == [("a 1", 2)]


def test_attributes_do_not_last_until_the_next_micro_batch():
    class Remembers(Counts):
        seen = 0

        def handleInputRows(self, key, rows, timerValues):
            self.seen += 1
            yield Row(k=key[0], v=self.seen)

    batches = MicroBatches(Remembers())
    rows = [("a", 0, 1), ("b", 0, 1)]
    assert batches.run(rows) == batches.run(rows) == [("a", 1), ("b", 2)]


def test_a_map_gives_rows_by_key_and_tuples_as_a_whole():
    class Maps(Base):
        def init(self, handle):
            self.map = handle.getMapState("map", "k STRING", "n INT")

        def handleInputRows(self, key, rows, timerValues):
            self.map.updateValue(("x",), (1,))
            self.map.updateValue(("y",), (2,))
            self.map.removeKey(("y",))
            values = [self.map.getValue(("x",)), self.map.getValue(("y",)), *self.map.iterator(), *self.map.values()]
            yield Row(k=repr(values), v=self.map.containsKey(("x",)) + self.map.containsKey(("y",)))

    assert MicroBatches(Maps()).run([("a", 0, 1)]) == [("[Row(n=1), None, (('x',), (1,)), (1,)]", 1)]


def test_state_timers_and_the_watermark_of_late_rows_are_restored():
    before = MicroBatches(Alarms(), "k STRING, v LONG", "eventtime", late=True)
    before.run([("a", 5000, 1)], 0)
    before.run([("a", 6000, 1)], 1, watermark=4000)
    after = MicroBatches(Alarms(), "k STRING, v LONG", "eventtime", late=True, snapshot=before.snapshot)
    # In Spark a row is late by the watermark of the micro-batch before.
    assert after.run([("a", 4000, 1), ("a", 4001, 1)], 2, watermark=5000) == [
        ("rows 1", 4001),
        ("timer", 4001),
        ("timer", 5000),
    ]


class Alarms(Base):
    def handleInputRows(self, key, rows, timerValues):
        times = [int(row.t.timestamp() * 1000) for row in rows if row.t]
        for time in times:
            self.handle.registerTimer(time)
        yield Row(k=f"rows {len(times)}", v=times[0])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k="timer", v=expiredTimerInfo.getExpiryTimeInMs())


def test_rows_are_late_by_the_watermark_of_the_micro_batch_before():
    batches = MicroBatches(Counts(), mode="eventtime", late=True)
    assert batches.run([("a", 0, 1), ("a", 1, 1), ("a", None, 1)], 0, watermark=0) == [("a 1", 2)]
    assert batches.run([("a", 1, 1)], 1, watermark=10) == [("a 1", 3)]
    # To the microsecond: 10.5 ms is after 10 ms.
    assert batches.run([("a", 10, 1), ("a", 10.5, 1)], 2, watermark=20) == [("a 1", 4)]
    # No data was in micro-batch 3, so it has the watermark of micro-batch 4.
    assert batches.run([("a", 20, 1), ("a", 30, 1), ("a", 31, 1)], 4, watermark=30) == [("a 1", 5)]
    assert batches.operator.context.counters["late_records_dropped"] == 2


def test_without_event_time_no_row_is_late():
    batches = MicroBatches(Counts())
    batches.run([("a", 5000, 1)], 0, watermark=4000)
    assert batches.run([("a", 0, 1)], 1, watermark=4000) == [("a 1", 2)]


def test_timers_are_called_in_the_order_of_time_after_all_rows():
    batches = MicroBatches(Alarms(), "k STRING, v LONG", "eventtime")
    assert batches.run([("b", 2000, 1), ("a", 3000, 1)], 0) == [("rows 1", 3000), ("rows 1", 2000)]
    assert batches.harness.event_time_timers_of("a") == [3000]
    assert batches.operator.next_wake_up == 2000
    emitted = batches.run([("a", 1000, 1)], 1, watermark=3000)
    assert emitted == [("rows 1", 1000), ("timer", 1000), ("timer", 2000), ("timer", 3000)]
    assert batches.operator.next_wake_up is None


class Changing(Base):
    def handleInputRows(self, key, rows, timerValues):
        for time in (1000, 2000, 3000):
            self.handle.registerTimer(time)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        time = expiredTimerInfo.getExpiryTimeInMs()
        if time == 1000:
            self.handle.deleteTimer(2000)
            self.handle.registerTimer(1500)
            self.handle.registerTimer(1000)
        yield Row(k=str(list(self.handle.listTimers())), v=time)


def test_timers_see_a_snapshot_of_the_timers_that_have_expired():
    """As in Spark, expired timers fire even if one deletes another, and new timers wait for the next micro-batch."""
    batches = MicroBatches(Changing(), mode="eventtime")
    batches.run([("a", 0, 1)], 0)
    assert batches.run([], 1, watermark=3000) == [
        ("[1000, 1500, 3000]", 1000),
        ("[1500, 3000]", 2000),
        ("[1500, 3000]", 3000),
    ]
    assert batches.run([], 2, watermark=3000) == [("[1500]", 1500)]
    assert batches.run([], 3, watermark=9000) == []


def test_a_timer_gets_the_key_as_a_row_and_may_emit_nothing():
    class Keys(Changing):
        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            if expiredTimerInfo.getExpiryTimeInMs() > 1000:
                return iter(())
            return iter([Row(k=f"{key!r} {key.k}", v=timerValues.getCurrentWatermarkInMs())])

    batches = MicroBatches(Keys(), mode="eventtime", key=("k", "v"))
    batches.run([("a", 0, 7)], 0)
    assert batches.run([], 1, watermark=3000) == [("Row(k='a', v=7) a", 3000)]


def test_close_is_called_after_each_micro_batch():
    class Closing(Base):
        def handleInputRows(self, key, rows, timerValues):
            return iter(())

        def close(self):
            raise RuntimeError("closed")

    with pytest.raises(RuntimeError, match="closed"):  # on the driver, too
        MicroBatches(Closing())


def test_the_rows_need_not_be_read_and_are_those_of_the_key():
    class First(Base):
        def handleInputRows(self, key, rows, timerValues):
            row = next(rows)
            yield Row(k=f"{row} {row['v']} {isinstance(row, Row)}", v=row.v)

    emitted = MicroBatches(First()).run([("a", 0, 1), ("a", 0, 2), ("b", 0, 3)])
    assert [v for _, v in emitted] == [1, 3]
    assert emitted[1][0].startswith("Row(k='b', t=datetime.datetime(1970, 1, 1, 0, 0, tzinfo=")
    assert emitted[1][0].endswith("v=3) 3 True")


def test_an_epoch_without_a_micro_batch_is_refused():
    batches = MicroBatches(Counts())
    with pytest.raises(ProgramError, match="recordings do not contain, so it cannot be replayed"):
        batches.harness.snapshot()


# -- results --


def emitting(*rows):
    class Emits(Base):
        def handleInputRows(self, key, inputs, timerValues):
            return iter(rows)

    return MicroBatches(Emits(), "k STRING, v INT, s STRUCT<a: INT>")


def test_results_go_by_name_and_missing_columns_are_null():
    rows = emitting(Row(v=1, k="a", other=2), Row(k="b"), Row(s=Row(a=1)), Row("v", "s")(3, {"a": 2}))
    assert [row[:2] for row in rows.run([("x", 0, 1)])] == [("a", 1), ("b", None), (None, None), (None, 3)]
    assert [row[2] and row[2].a for row in rows.run([("x", 0, 1)])] == [None, None, 1, 2]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (Row(k=5), r"with the key 'x': ArrowTypeError: Expected bytes, got a 'int' object: .*emitted Row\(k=5\)"),
        (Row("x"), "Cannot convert Row into dict"),
        ({"k": "x"}, "AttributeError: 'dict' object has no attribute 'asDict'"),
    ],
)
def test_a_result_that_does_not_fit_is_spark_s_error_with_the_row(row, error):
    rows = emitting(Row(k="fine"), row)
    with pytest.raises(OperatorError, match=error):
        rows.run([("x", 0, 1)])


def test_a_function_that_returns_nothing_is_spark_s_error():
    class Nothing(Base):
        def handleInputRows(self, key, rows, timerValues):
            pass

    with pytest.raises(OperatorError, match="key 'x': TypeError: 'NoneType' object is not iterable"):
        MicroBatches(Nothing()).run([("x", 0, 1)])


# -- initial state --


class Starts(Counts):
    def handleInitialState(self, key, initialState, timerValues):
        self.count.update(((self.count.get() or (0,))[0] + initialState.first,))


INITIAL = pa.table({"0 key": ["a", "b", "a"], "key": ["a", "b", "a"], "first": [10, 20, 5]})


@pytest.mark.parametrize("first", [0, None])
def test_an_initial_state_comes_before_the_rows_of_the_first_micro_batch(first):
    batches = MicroBatches(Starts(), initial=INITIAL)
    assert batches.run([("a", 0, 1)], first) == [("a 1", 16)]
    assert batches.run([("b", 0, 1)], 1) == [("b 1", 21)]


def test_a_query_that_has_begun_takes_no_initial_state():
    batches = MicroBatches(Starts(), initial=INITIAL)
    assert batches.run([("a", 0, 1)], 1) == [("a 1", 1)]


# -- errors of init, with Spark's conditions --

_HANDLE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
_MODE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"


@pytest.mark.parametrize(
    ("init", "error"),
    [
        (lambda handle: handle.getValueState("a", "v INT", 5), "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        (
            lambda handle: [handle.getValueState("a", "v INT"), handle.getValueState("a", "v INT")],
            "Error initializing value state: Value state a already exists",
        ),
        (
            lambda handle: [handle.getValueState("a", "v INT"), handle.getListState("a", "v INT")],
            "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
        ),
        (lambda handle: handle.registerTimer(5), f"Error register timer: \\[{_MODE}"),
        (lambda handle: handle.getValueState("a", "v INT").get(), f"{_HANDLE}.* operation=a.get .* state=PRE_INIT"),
        (
            lambda handle: [handle.deleteIfExists("a"), handle.getValueState("a", "v INT")],
            "deletes the state 'a' and declares it again",
        ),
    ],
)
def test_wrong_declarations_are_spark_s_errors(init, error):
    class Wrong(Base):
        def init(self, handle):
            init(handle)

    with pytest.raises(PySparkRuntimeError, match=error):
        TwsTester(Wrong())


@pytest.mark.parametrize(
    ("init", "error"),
    [
        (lambda handle: handle.registerTimer(5), f"{_HANDLE}.* operation=register_timer .* state=PRE_INIT"),
        (lambda handle: handle.listTimers(), f"{_HANDLE}.* operation=list_timers .* state=PRE_INIT"),
        (lambda handle: handle.getMapState("a", "k INT", "v INT", -5), "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POS"),
    ],
)
def test_wrong_declarations_in_processing_time(init, error):
    class Wrong(Base):
        def init(self, handle):
            init(handle)

    with pytest.raises(PySparkRuntimeError, match=error):
        TwsTester(Wrong(), timeMode="ProcessingTime")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda handle: handle.getValueState("new", "v INT"), f"{_HANDLE}.* operation=get_value_state .*=INITIALIZED"),
        (lambda handle: handle.deleteIfExists("new"), f"{_HANDLE}.* operation=delete_if_exists .*=INITIALIZED"),
        (lambda handle: handle.registerTimer(5), f"{_MODE}.* operation=register_timer .* timeMode=NoTime"),
    ],
)
def test_calls_outside_init_and_timers_without_a_time_mode(call, error):
    class Late(Base):
        def handleInputRows(self, key, rows, timerValues):
            call(self.handle)
            return iter(())

    with pytest.raises(OperatorError, match=error):
        TwsTester(Late()).test("a", [Row(v=1)])


def test_a_deleted_state_cannot_be_used_and_the_others_can():
    class Deletes(Base):
        def init(self, handle):
            self.gone = handle.getValueState("gone", "n INT")
            self.count = handle.getValueState("count", "n INT")
            handle.deleteIfExists("gone")

        def handleInputRows(self, key, rows, timerValues):
            self.count.update((1,))
            with pytest.raises(PySparkRuntimeError, match="checking value state exists: Value state gone is not init"):
                self.gone.exists()
            with pytest.raises(PySparkRuntimeError, match="Error updating value state: Value state gone is not init"):
                self.gone.update((1,))
            yield Row(v=self.count.get()[0])

    assert TwsTester(Deletes()).test("a", [Row(v=1)]) == [Row(v=1)]


def test_a_state_of_a_checkpoint_can_be_deleted():
    class Old(Base):
        def init(self, handle):
            handle.getValueState("old", "n INT")
            self.count = handle.getValueState("count", "n INT")

        def handleInputRows(self, key, rows, timerValues):
            self.count.update((1,))
            return iter(())

    class New(Counts):
        def init(self, handle):
            super().init(handle)
            handle.deleteIfExists("old")

    before = MicroBatches(Old())
    before.run([("a", 0, 1)])
    assert MicroBatches(New(), snapshot=before.snapshot).run([("a", 0, 1)]) == [("a 1", 2)]


def test_a_state_that_is_declared_and_deleted_is_empty_afterwards():
    class Deletes(Counts):
        def init(self, handle):
            super().init(handle)
            handle.deleteIfExists("count")

        def handleInputRows(self, key, rows, timerValues):
            return iter(())

    before = MicroBatches(Counts())
    before.run([("a", 0, 1)])
    deleting = MicroBatches(Deletes(), snapshot=before.snapshot)
    deleting.run([("a", 0, 1)])
    assert MicroBatches(Counts(), snapshot=deleting.snapshot).run([("a", 0, 1)]) == [("a 1", 1)]


# -- time-to-live --


class Lives(Base):
    def init(self, handle):
        self.value = handle.getValueState("value", "n INT", 10_000)
        self.list = handle.getListState("list", "n INT", 10_000)
        self.map = handle.getMapState("map", "k INT", "n INT", 10_000)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.v:
                self.value.update((row.v,))
                self.list.appendValue((row.v,))
                self.map.updateValue((row.v,), (row.v,))
        yield Row(said=[self.value.get(), list(self.list.get()), list(self.map.keys()), self.map.exists()])


def test_states_expire_at_the_time_of_the_micro_batch():
    tester = TwsTester(Lives(), timeMode="ProcessingTime")
    tester.setProcessingTime(1_000)
    tester.test("a", [Row(v=1)])
    tester.setProcessingTime(5_000)
    tester.test("a", [Row(v=2)])
    tester.setProcessingTime(10_999)
    assert tester.test("a", [Row(v=0)]) == [Row(said=[(2,), [(1,), (2,)], [(1,), (2,)], True])]
    tester.setProcessingTime(11_000)
    assert tester.test("a", [Row(v=0)]) == [Row(said=[(2,), [(2,)], [(2,)], True])]
    tester.setProcessingTime(15_000)
    assert tester.test("a", [Row(v=0)]) == [Row(said=[None, [], [], False])]
