"""The laws of operators. Correct operators obey each law, and wrong operators break it."""

from __future__ import annotations

import pytest

from pillarbox import (
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox.testing import (
    OneInputStreamOperatorTestHarness,
    ProcessingTime,
    StreamRecord,
    Watermark,
    check_operator,
    harness_for,
    row,
)
from tests.support.nodes import node


class Double(MapFunction):
    def map(self, value):
        return value["n"] * 2


class Twice(FlatMapFunction):
    def flat_map(self, value):
        return [value.n, value.n]


class Even(FilterFunction):
    def filter(self, value):
        return value.n % 2 == 0


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield value.n, ctx.timestamp()


class Sum(ReduceFunction):
    def reduce(self, value1, value2):
        return row(key=value1.key, n=value1.n + value2.n)


class Numbered(MapFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value.n, self.count.value()


class Sessions(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))
        self.end = runtime_context.get_state(ValueStateDescriptor("end"))

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        if self.end.value() is not None:
            timers.delete_event_time_timer(self.end.value())
        self.seen.add(value.n)
        self.end.update(ctx.timestamp() + 10)
        timers.register_event_time_timer(self.end.value())
        if value.n == 3:
            timers.register_processing_time_timer(50)
        yield "seen", value.n

    def on_timer(self, timestamp, ctx):
        yield ctx.time_domain().value, ctx.get_current_key(), timestamp, list(self.seen)


class Pairs(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.left = runtime_context.get_state(ValueStateDescriptor("left"))

    def process_element1(self, value, ctx):
        self.left.update(value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def process_element2(self, value, ctx):
        yield self.left.value(), value.n

    def on_timer(self, timestamp, ctx):
        yield "over", self.left.value()
        self.left.clear()


def record(key, n, timestamp):
    return StreamRecord(row(key=key, n=n), timestamp)


SCRIPT = [
    record("a", 1, 0),
    record("b", 2, 3),
    record("a", 3, 5),
    Watermark(4),
    record("a", 4, 14),
    ProcessingTime(40),
    record("c", 6, 16),
    Watermark(15),
    record("b", 7, 17),
    record("c", 8, 30),
    ProcessingTime(60),
    Watermark(40),
    record("a", 9, 41),
]
BOTH = [(number % 2, step) if isinstance(step, StreamRecord) else step for number, step in enumerate(SCRIPT)]


@pytest.mark.parametrize("function", [Double, Twice, Even, Plain])
def test_functions_without_key(function):
    check_operator(lambda **options: harness_for(function(), **options), SCRIPT)


@pytest.mark.parametrize("function", [Sum, Numbered, Sessions, Double, Twice, Even])
def test_functions_with_a_key(function):
    check_operator(lambda **options: harness_for(function(), key_by="key", **options), SCRIPT)


def test_functions_of_two_streams():
    check_operator(lambda **options: harness_for(Pairs(), key_by=("key", "key"), **options), BOTH)


def test_timestamps_and_watermarks():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamp_assigner("n")

    def open_harness(**options):
        return OneInputStreamOperatorTestHarness(node(TimestampsAndWatermarksOperator, "times", strategy), **options)

    with open_harness() as harness:
        harness.push(row(n=5))
    steps = [StreamRecord(row(n=n), None) for n in (1, 4, 3, 9, 8)]
    with pytest.raises(AssertionError, match="law 1"):
        check_operator(open_harness, steps)  # watermarks follow each batch, so they depend on the split


@pytest.mark.parametrize("ordered", [True, False])
def test_async_functions(ordered):
    async def asked(value):
        return value.n * 10

    def open_harness(**options):
        return OneInputStreamOperatorTestHarness(
            node(AsyncWaitOperator, "ask", asked, AsyncOptions("map_async", ordered=ordered, timeout=None)), **options
        )

    check_operator(open_harness, [step for step in SCRIPT if not isinstance(step, ProcessingTime)], ordered=ordered)


# -- each law can be broken --


class Forgetful(KeyedProcessFunction):
    """Keeps its count in a field, which is lost with the task."""

    count = 0

    def process_element(self, value, ctx):
        self.count += 1
        yield self.count


class Cached(KeyedProcessFunction):
    """Keeps a copy of its state in a field, which it fills from the state for new keys."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.counts = {}

    def process_element(self, value, ctx):
        before = self.counts.get(value.key)
        if before is None:
            before = self.count.value() or 0
        self.counts[value.key] = before + 1
        self.count.update(before + 1)
        yield value.key, before + 1


class OfRuns(StreamOperator):
    def process_records(self, records):
        self.output.process_records(records)
        self.output.process_watermark(records.timestamps[-1] - 100)


class BackInTime(StreamOperator):
    def process_records(self, records):
        self.output.process_records(records)

    def process_watermark(self, timestamp):
        self.output.process_watermark(-timestamp)


class TooLate(StreamOperator):
    """Emits a record after a watermark that it should precede."""

    def process_records(self, records):
        self.output.process_records(records)

    def process_watermark(self, timestamp):
        super().process_watermark(timestamp)
        self.output.process_records(Records(["late"], [timestamp]))


class Leaking(StreamOperator):
    """Fails in a batch of records, and then cannot be closed."""

    busy = False

    def process_records(self, records):
        self.busy = True
        self.output.process_records(records)
        self.busy = False

    def close(self):
        if self.busy:
            raise RuntimeError("still busy")


class BlindToColumns(StreamOperator):
    def process_records(self, records):
        if not isinstance(records, ArrowRecords):
            self.output.process_records(records)


class AtTheEndOfRuns(StreamOperator):
    """Emits a record at the end of each batch of records."""

    def process_records(self, records):
        self.output.process_records(Records([sum(value.n for value in records.values)], records.timestamps[-1:]))


class Unfinished(StreamOperator):
    """Holds all records in a field until the end of the input."""

    def __init__(self, context):
        super().__init__(context)
        self.held = []

    def process_records(self, records):
        self.held += records.values

    def finish(self):
        self.output.process_records(Records(self.held))


class TwiceAtTheEnd(Unfinished):
    """Emits its records with each checkpoint, and again at the end."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id):
        self.finish()

    def snapshot_state(self, checkpoint_id):
        return list(self.held)

    def restore_state(self, state):
        self.held = list(state or [])


class NotRestored(TwiceAtTheEnd):
    """Breaks a law by writing its state without restoring it."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id):
        pass

    def restore_state(self, state):
        pass


class TooLateInClose(Unfinished):
    """Emits its records after the consumer has ended."""

    def finish(self):
        pass

    def close(self):
        self.output.process_records(Records(self.held))


class WornOut(StreamOperator):
    """Fails after two snapshots."""

    snapshots = 0

    def process_records(self, records):
        if self.snapshots < 2:
            self.output.process_records(records)

    def snapshot_state(self, checkpoint_id):
        self.snapshots += 1


@pytest.mark.parametrize(
    ("operator", "law"),
    [
        (OfRuns, 1),
        (AtTheEndOfRuns, 1),
        (Unfinished, 2),
        (TwiceAtTheEnd, 2),
        (NotRestored, 2),
        (BackInTime, 3),
        (TooLate, 3),
        (Leaking, 4),
        (TooLateInClose, 4),
        (BlindToColumns, 5),
        (WornOut, 6),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_operator_that_breaks_a_law(operator, law):
    def open_harness(**options):
        return OneInputStreamOperatorTestHarness(node(operator, "bad"), **options)

    with pytest.raises(AssertionError, match=f"law {law}"):
        check_operator(open_harness, [record("a", 1, 1), record("a", 2, 2), record("b", 3, 3), Watermark(5)])


def test_a_late_record_excuses_no_operator_that_overtakes_before_it():
    def open_harness(**options):
        return OneInputStreamOperatorTestHarness(node(TooLate, "bad"), **options)

    with pytest.raises(AssertionError, match="law 3: records were emitted after a watermark"):
        check_operator(open_harness, [record("a", 1, 1), Watermark(5), record("a", 2, 2)])


class ChangedInPlace(KeyedProcessFunction):
    """Changes a state value in place without an update."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        if self.seen.value() is None:
            self.seen.update([])
        self.seen.value().append(value.n)
        yield tuple(self.seen.value())


def test_a_function_that_changes_state_in_place():
    with pytest.raises(AssertionError, match=r"law 2: .* or was changed in place without update\(\)"):
        check_operator(lambda **options: harness_for(ChangedInPlace(), key_by="key", **options), SCRIPT)


def test_a_function_that_keeps_state_outside_of_state():
    with pytest.raises(AssertionError, match="law 2: resuming from a snapshot after step 1 of 13"):
        check_operator(lambda **options: harness_for(Forgetful(), key_by="key", **options), SCRIPT)


def test_a_function_may_keep_a_copy_of_its_state():
    check_operator(lambda **options: harness_for(Cached(), key_by="key", **options), SCRIPT)


class Counting(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = 0

    def process_element(self, value, ctx):
        self.count += 1
        yield self.count


def test_a_field_counts_on_from_snapshot_to_snapshot():
    with pytest.raises(AssertionError, match="law 2: resuming from a snapshot"):
        check_operator(lambda **options: harness_for(Counting(), key_by="key", **options), SCRIPT)
    with harness_for(Counting(), key_by="key") as harness:
        for _ in range(3):
            harness.push(row(key="a", n=1), 0)
            harness.snapshot()
        assert harness.get_output() == [1, 2, 3]


def test_a_function_that_is_given_to_all_harnesses():
    function = Sessions()
    with pytest.raises(ValueError, match=r"the same Sessions: create a new one .* harness_for\(Sessions\(\.\.\.\), "):
        check_operator(lambda **options: harness_for(function, key_by="key", **options), SCRIPT)


def test_the_functions_own_error_comes_out():
    class Fails(MapFunction):
        def map(self, value):
            raise ValueError("mine")

    with pytest.raises(Exception, match="mine"):
        check_operator(lambda **options: harness_for(Fails(), **options), SCRIPT)


class ChangesItsRecord(MapFunction):
    def map(self, value):
        value["seen"] = value.get("seen", 0) + 1
        return value


def test_a_function_may_change_its_records_but_not_the_elements() -> None:
    records = [{"n": n} for n in range(4)]
    check_operator(lambda **options: harness_for(ChangesItsRecord(), **options), [StreamRecord(r, 1) for r in records])
    with harness_for(ChangesItsRecord()) as harness:
        harness.push(records[0])
        harness.push_all(records)
        assert harness.get_output() == [{"n": 0, "seen": 1}, *({"n": n, "seen": 1} for n in range(4))]
    assert records == [{"n": n} for n in range(4)]
