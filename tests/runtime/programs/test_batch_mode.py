from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ProgramError,
    RuntimeExecutionMode,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    sum_,
)
from pillarbox import (
    SlidingEventTimeWindows as Sliding,
)
from pillarbox import (
    TumblingEventTimeWindows as Tumbling,
)
from pillarbox import (
    TumblingProcessingTimeWindows as ByClock,
)
from pillarbox._elements.records import Records
from pillarbox._task.network import key_sorter
from pillarbox.testing import ProgramTestHarness, row
from tests.support.programs import first, monotonous

BATCH, STREAMING = RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING
# Key, time, amount.
EVENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.integers(-5, 5)), max_size=25)
MIN, MAX = -(2**63), 2**63 - 1


def environment(mode=BATCH, parallelism=1):
    return StreamExecutionEnvironment().set_parallelism(parallelism).set_runtime_mode(mode)


def timed(env, events):
    late = WatermarkStrategy.for_bounded_out_of_orderness(1_000_000).with_timestamp_assigner(lambda event: event[1])
    return env.from_collection(events).assign_timestamps_and_watermarks(late)


def added(total, other):
    return total[0], max(total[1], other[1]), total[2] + other[2]


@given(EVENTS, st.integers(1, 2))
def test_count_windows_fire_as_in_streaming(events, parallelism):
    events = sorted(events, key=lambda event: event[1])
    batch, streaming = (
        timed(environment(mode, parallelism), events).key_by(first).count_window(3).reduce(added).execute_and_collect()
        for mode in (BATCH, STREAMING)
    )
    assert Counter(map(str, batch)) == Counter(map(str, streaming))


class Notes(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, event, ctx):
        self.count.update((self.count.value() or 0) + 1)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(100 - event[1])
        timers.register_event_time_timer(event[1] + 5)
        timers.register_event_time_timer(event[1] + 6)
        timers.delete_event_time_timer(event[1] + 6)
        yield ctx.get_current_key(), "record", event[1], ctx.timestamp(), self.count.value(), timers.current_watermark()

    def on_timer(self, timestamp, ctx):
        timers = ctx.timer_service()
        timers.register_event_time_timer(timestamp + 1)
        timers.register_processing_time_timer(timestamp + 1)
        yield ctx.get_current_key(), ctx.time_domain().value, timestamp, self.count.value(), timers.current_watermark()


def test_one_key_after_the_other(caplog):
    events = [("b", 7), ("a", 3), ("b", 2), ("c", 1), ("b", 4), ("a", 1)]
    out = environment().from_collection(events).assign_timestamps_and_watermarks(monotonous()).key_by(first)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        notes = list(out.process(Notes()).execute_and_collect())
    keys = [note[0] for note in notes]
    assert all(
        keys.count(key) == sum(1 for other in keys[keys.index(key) :][: keys.count(key)] if other == key)
        for key in "abc"
    )
    assert [note[1:] for note in notes if note[0] == "b"] == [
        ("record", 2, 2, 1, MIN),
        ("record", 4, 4, 2, MIN),
        ("record", 7, 7, 3, MIN),
        ("event time", 7, 3, MAX),
        ("event time", 9, 3, MAX),
        ("event time", 12, 3, MAX),
        ("processing time", 93, 3, MAX),
        ("processing time", 96, 3, MAX),
        ("processing time", 98, 3, MAX),
    ]
    # Timers that are set by final timers are too late, as in Flink: one warning per clock.
    assert ["'process: Notes'" in record.getMessage() for record in caplog.records] == [True, True]
    assert "is dropped" in caplog.text


def test_spilled(monkeypatch):
    monkeypatch.setattr(key_sorter, "_OBJECT_BYTES", 0)
    monkeypatch.setattr(key_sorter, "_PORTION_BYTES", 2_000)
    monkeypatch.setattr(key_sorter, "_BLOCK_BYTES", 300)
    spilled = 0
    spill = key_sorter.KeySorter._spill

    def counted(sorter):
        nonlocal spilled
        spilled += 1
        spill(sorter)

    monkeypatch.setattr(key_sorter.KeySorter, "_spill", counted)
    events = [(f"key {number % 331}", number, 1) for number in range(5_000)]
    runs = [Records(events[start : start + 200]) for start in range(0, 5_000, 200)]
    monkeypatch.setattr("pillarbox._task.network.record_writer._BUFFER_RECORDS", 50)
    summed = timed(environment(parallelism=2), []).key_by(first).reduce(added)
    with summed._env.local_job(out=summed) as job:
        out = job.run_epoch({0: [runs]}, bounded=True)["out"]
    assert spilled > 20
    assert sorted(out) == sorted(
        (f"key {key}", max(range(key, 5_000, 331)), len(range(key, 5_000, 331))) for key in range(331)
    )


class Both(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element1(self, value, ctx):
        self.seen.update([*(self.seen.value() or []), value])
        ctx.timer_service().register_event_time_timer(1)

    process_element2 = process_element1

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.seen.value()


def test_two_keyed_inputs_meet_by_key_and_time():
    env = environment(parallelism=2)
    at = monotonous()
    left = env.from_collection([("a", 1, "l"), ("b", 5, "l"), ("a", 9, "l")]).assign_timestamps_and_watermarks(at)
    right = env.from_collection([("a", 4, "r"), ("c", 0, "r"), ("a", 1, "r")]).assign_timestamps_and_watermarks(at)
    both = left.connect(right).key_by(first, first).process(Both())
    assert sorted(both.execute_and_collect()) == [
        ("a", [("a", 1, "l"), ("a", 1, "r"), ("a", 4, "r"), ("a", 9, "l")]),
        ("b", [("b", 5, "l")]),
        ("c", [("c", 0, "r")]),
    ]


LIMITS = MapStateDescriptor("limits")


class Known(BroadcastProcessFunction):
    def process_element(self, word, ctx):
        yield word, sorted(ctx.get_broadcast_state(LIMITS).keys())

    def process_broadcast_element(self, name, ctx):
        ctx.get_broadcast_state(LIMITS).put(name, True)


class KnownByKey(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, word, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield word, self.count.value(), sorted(ctx.get_broadcast_state(LIMITS).keys())

    def process_broadcast_element(self, name, ctx):
        ctx.get_broadcast_state(LIMITS).put(name, True)


def test_the_broadcast_stream_comes_first():
    env = environment(parallelism=2)
    words = env.from_collection(["to", "be", "to"])  # before the names, as the program is built
    names = env.from_collection(["x", "y"]).broadcast(LIMITS)
    assert sorted(words.connect(names).process(Known()).execute_and_collect()) == [
        ("be", ["x", "y"]),
        ("to", ["x", "y"]),
        ("to", ["x", "y"]),
    ]
    keyed = words.key_by(lambda word: word).connect(names).process(KnownByKey())
    assert sorted(keyed.execute_and_collect()) == [
        ("be", 1, ["x", "y"]),
        ("to", 1, ["x", "y"]),
        ("to", 2, ["x", "y"]),
    ]


class Marks(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


class Counting(MapFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value, self.count.value()


def test_there_are_no_watermarks_before_the_end():
    events = [("a", 3, 1), ("b", 9, 1), ("a", 7, 1)]
    stream = environment().from_collection(events).assign_timestamps_and_watermarks(monotonous()).process(Marks())
    assert [mark[1:] for mark in stream.execute_and_collect()] == [(3, MIN), (9, MIN), (7, MIN)]
    sums = environment().from_collection(events).assign_timestamps_and_watermarks(monotonous()).key_by(first).sum(2)
    # The result of a key has the time of its last record.
    assert sorted(sums.process(Marks()).execute_and_collect()) == [(("a", 3, 2), 7, MIN), (("b", 9, 1), 9, MIN)]


def test_keyed_functions_and_further_shuffles():
    counted = environment(parallelism=2).from_collection(["to", "be", "to", None]).key_by(lambda word: word)
    counts = counted.map(Counting())
    assert sorted(counts.execute_and_collect(), key=str) == [("be", 1), ("to", 1), ("to", 2), (None, 1)]
    again = counts.key_by(lambda pair: pair[1]).map(Counting()).key_by(lambda pair: pair[0][1]).max_by(1)
    assert sorted(again.filter(lambda pair: pair[0][1] == 2).execute_and_collect()) == [(("to", 2), 1)]

    async def asked(word):
        return f"{word}!"

    assert sorted(counted.filter(bool).key_by(len).map_async(asked).execute_and_collect()) == ["be!", "to!", "to!"]


def test_windows_of_the_clock_fire_at_the_end_and_counts_that_are_not_full_do_not():
    keyed = environment().from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(first)
    summed = keyed.window(ByClock.of("1 hour")).reduce(lambda total, other: (total[0], total[1] + other[1]))
    assert sorted(summed.execute_and_collect()) in ([("a", 4), ("b", 2)], [("a", 1), ("a", 3), ("b", 2)])
    assert keyed.count_window(2).reduce(lambda total, other: (total[0], total[1] + other[1])).execute_and_collect() == [
        ("a", 4)
    ]


def test_nothing_of_a_key_is_left():
    env = environment(parallelism=2)
    events = [(number, number, 1) for number in range(100)]
    keyed = timed(env, events).key_by(first)
    with env.local_job(sums=keyed.sum(2), windows=keyed.window(Sliding.of(20, 5)).reduce(added)) as job:
        out = job.run()
        assert (len(out["sums"]), len(out["windows"])) == (100, 400)
        assert all(report.keys == report.event_time_timers == 0 for report in job.reports if report.level)
        stores = job.savepoint().values()
        assert stores and [store.chunks for store in stores if store.chunks] == []
        with pytest.raises(ProgramError, match="batch mode processes all of its input in a single epoch"):
            job.run()


def test_columns_work_on_all_keys_at_once():
    event = Types.ROW_NAMED(["key", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])
    rows = [("abc"[number % 3], number, number) for number in range(40)]

    def run(mode, build):
        late = WatermarkStrategy.for_bounded_out_of_orderness(1_000_000).with_timestamp_assigner("at")
        stream = environment(mode, 2).from_collection(rows, event).assign_timestamps_and_watermarks(late)
        return Counter(map(tuple, build(stream).execute_and_collect()))

    def aggregated(stream):
        return stream.key_by("key").window(Tumbling.of(10)).aggregate(total=sum_("n"))

    def joined(stream):
        other = stream.filter(lambda row: row.n % 2 == 0)
        other._step.output_type = event
        return stream.key_by("key").interval_join(other.key_by("key")).between(-3, 3).columns(suffixes=("", "_right"))

    for build in (aggregated, joined):
        assert run(BATCH, build) == run(STREAMING, build)
        assert run(BATCH, build)


def test_dead_letters_and_time_to_live():
    bad: OutputTag[Any] = OutputTag("bad")

    class Sums(KeyedProcessFunction):
        def open(self, runtime_context):
            descriptor = ValueStateDescriptor("sum")
            descriptor.enable_time_to_live(StateTtlConfig.new_builder("1 hour").build())
            self.sum = runtime_context.get_state(descriptor)

        def process_element(self, event, ctx):
            self.sum.update((self.sum.value() or 0) + 10 // event[1])
            ctx.timer_service().register_event_time_timer(1)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), self.sum.value()

    env = environment(parallelism=2)
    keyed = env.from_collection([("a", 5), ("b", 0), ("a", 0), ("a", 2), ("b", 1)]).key_by(first)
    sums = keyed.process(Sums(), on_error=bad)
    with env.local_job(sums=sums, bad=sums.get_side_output(bad)) as job:
        out = job.run()
    assert sorted(out["sums"]) == [("a", 7), ("b", 10)]
    assert sorted(letter.value for letter in out["bad"]) == [("a", 0), ("b", 0)]


def test_it_is_one_epoch():
    def build(env, numbers):
        return env.set_runtime_mode(BATCH) and numbers.key_by(lambda number: number % 2).sum()

    with ProgramTestHarness(build) as harness:
        harness.push_all("numbers", [1, 2, 3])
        with pytest.raises(ProgramError, match=r"all of its input in a single epoch: call end_input\(\)"):
            harness.run_epoch()
    with ProgramTestHarness(build) as harness:
        harness.push_all("numbers", [1, 2, 3])
        assert sorted(harness.end_input()["output"]) == [2, 4]
    env = StreamExecutionEnvironment()
    stream = env.from_collection([]).key_by(first).sum().uid("sums")
    with env.local_job(out=stream) as job:
        job.run_epoch({0: [[Records([(1, 2)])]]})
        saved = job.savepoint()
    env.set_runtime_mode(BATCH)
    with pytest.raises(ProgramError, match="batch mode starts without state"):
        env.local_job(out=stream, savepoint=saved)


def test_the_mode_is_in_the_plan_and_automatic_for_collections():
    env = environment(RuntimeExecutionMode.AUTOMATIC)
    stream = env.from_collection([1, 2]).key_by(lambda number: 0).sum()
    assert stream.execute_and_collect() == [3]
    assert str(env.get_execution_graph()).splitlines()[0].endswith(", batch mode")
    assert env.set_runtime_mode(STREAMING) is env
    assert stream.execute_and_collect() == [1, 3]


def test_a_function_that_fails_names_key_and_record():
    keyed = environment().from_collection([row(id=1, key="k"), row(id=0, key="k")]).key_by("key")

    def divide(dividend: Any, divisor: Any) -> Any:
        return 1 // divisor.id

    with pytest.raises(OperatorError, match=r"'reduce: divide' failed at the record Row\(id=0, key='k'\)"):
        keyed.reduce(divide).execute_and_collect()


class AtTheEnd(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value)
        yield value

    def on_timer(self, timestamp, ctx):
        yield -1 - timestamp


def test_streams_that_meet_within_a_task_come_to_their_end_together():
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    passed = env.from_collection(range(6)).key_by(lambda n: 0).map(lambda n: n)
    stamps = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
    parts = passed.filter(lambda n: n % 2 == 0), passed.filter(lambda n: n % 2 == 1), passed.filter(lambda n: n < 0)
    first, second, empty = (part.assign_timestamps_and_watermarks(stamps.with_idleness("1 minute")) for part in parts)
    met = first.union(second, empty).map(lambda n: n).key_by(lambda n: 0).process(AtTheEnd())
    assert sorted(met.execute_and_collect()) == sorted([*range(6), *(-1 - n for n in range(6))])


class Counted(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, len(elements)


def test_windows_with_allowed_lateness_warn_of_nothing(caplog):
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])
    keyed = env.from_collection([("a", 1), ("a", 12), ("b", 5)]).assign_timestamps_and_watermarks(by_time)
    windows = keyed.key_by(lambda record: record[0]).window(Tumbling.of(10)).allowed_lateness(60)
    counted = windows.process(Counted())
    with caplog.at_level(logging.WARNING, "pillarbox"):
        assert sorted(counted.execute_and_collect()) == [("a", 0, 1), ("a", 10, 1), ("b", 0, 1)]
    assert not caplog.records
