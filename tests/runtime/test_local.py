"""With any parallelism and any division into epochs, local programs have the same results as plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    KeyedProcessFunction,
    KeyTypeError,
    OperatorError,
    ProcessFunction,
    ProgramError,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from pillarbox._elements.records import Records
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox.testing import ProgramTestHarness, row
from tests.support.programs import History, Tumbling, diamond, first, late_data, monotonous, rows_with_columns, windows

PARALLELISM = st.integers(1, 4)
EVENTS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 300), st.integers(-5, 5)), max_size=40)


def cut(items, places):
    edges = [0, *sorted(cut % (len(items) + 1) for cut in places), len(items)]
    return [items[start:end] for start, end in pairwise(edges)]


CUTS = st.lists(st.integers(0, 1000), max_size=5)


@given(EVENTS, CUTS, PARALLELISM)
def test_windows(events, places, parallelism):
    expected: Counter[tuple[str, int]] = Counter()
    for key, timestamp, value in events:
        expected[key, timestamp // 50 * 50 + 50] += value
    with ProgramTestHarness(windows, parallelism=parallelism) as harness:
        for part in cut(events, places):
            harness.push_all("events", part)
            harness.run_epoch()
        harness.end_input()
        assert sorted(harness.get_output("sums")) == sorted((*window, total) for window, total in expected.items())
        assert harness.get_output("late") == []


@pytest.mark.slow("a model")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.integers(0, 5)), max_size=30), PARALLELISM)
def test_no_record_is_lost_to_watermarks(events, parallelism):
    latest, late = -1, []
    expected: Counter[tuple[str, int]] = Counter()
    for key, timestamp, value in events:
        end = timestamp // 50 * 50 + 50
        if end - 1 <= latest - 1:
            late.append((key, timestamp, value))
        else:
            expected[key, end] += value
        latest = max(latest, timestamp)
    with ProgramTestHarness(late_data, parallelism=parallelism) as harness:
        for event in events:
            harness.push("events", event)
            harness.run_epoch()
        harness.end_input()
        assert harness.get_output("late") == late
        assert sorted(harness.get_output("sums")) == sorted((*window, total) for window, total in expected.items())


def two_levels(env, left, right):
    both = left.map(lambda x: x + 1).union(right.filter(lambda x: x % 2 == 0))
    first = both.key_by(lambda x: x % 5).process(History())
    second = (
        first.flat_map(lambda result: [result[0]] * (result[1] % 3)).key_by(lambda x: x % 2).reduce(lambda a, b: a + b)
    )
    return {"history": first, "sums": second}


def two_levels_in_python(left, right):
    seen: defaultdict[int, list[int]] = defaultdict(list)
    count: Counter[int] = Counter()
    sums: dict[int, int] = {}
    history = []
    for value in [x + 1 for x in left] + [x for x in right if x % 2 == 0]:
        key = value % 5
        seen[key] = [] if value % 7 == 0 else [*seen[key], value]
        count[key] += 1
        history.append((key, count[key], tuple(seen[key])))
    for key, number, _ in history:
        for _ in range(number % 3):
            sums[key % 2] = sums.get(key % 2, 0) + key
    return history, sums


def by_key(history):
    grouped = defaultdict(list)
    for key, *rest in history:
        grouped[key].append(rest)
    return grouped


@pytest.mark.slow("a model")
@given(st.lists(st.integers(0, 100), max_size=40), CUTS, PARALLELISM, st.integers(0, 6))
def test_two_levels(numbers, places, parallelism, disaster):
    expected, sums = two_levels_in_python(numbers, [])
    with ProgramTestHarness(two_levels, parallelism=parallelism) as harness:
        for epoch, part in enumerate(cut(numbers, places)):
            harness.push_all("left", part)
            if epoch == disaster:
                harness.fail_epoch()
            if epoch + 1 == disaster:
                harness.restore(harness.snapshot())
            harness.run_epoch()
        assert by_key(harness.get_output("history")) == by_key(expected)
        last = {}
        for value in harness.get_output("sums"):
            last[value] = value
        assert all(total in last for total in sums.values())


@given(st.lists(st.integers(0, 100), max_size=20), st.lists(st.integers(0, 100), max_size=20), PARALLELISM)
def test_two_sources(left, right, parallelism):
    expected, _ = two_levels_in_python(left, right)
    with ProgramTestHarness(two_levels, parallelism=parallelism) as harness:
        harness.push_all("left", left)
        harness.run_epoch()
        harness.push_all("right", right)
        harness.run_epoch()
        assert by_key(harness.get_output("history")) == by_key(expected)


@given(st.lists(st.integers(-10, 10), max_size=30), PARALLELISM)
def test_a_diamond(numbers, parallelism):
    everything = [2 * x for x in numbers] + [-x for x in numbers] + numbers + numbers
    with ProgramTestHarness(diamond, parallelism=parallelism) as harness:
        harness.push_all("source", numbers)
        out = harness.end_input()["output"]
    running = [key * n for key, total in Counter(everything).items() for n in range(1, total + 1)]
    assert sorted(out) == sorted(running)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=30), PARALLELISM)
def test_partitions_of_a_source(elements, parallelism):
    with ProgramTestHarness(
        lambda env, s: s.key_by(lambda x: 0).process(History()), parallelism=parallelism
    ) as harness:
        for partition, value in elements:
            harness.push("s", value, partition=partition)
        harness.run_epoch()
        assert len(harness.get_output()) == len(elements)
        in_order = [value for partition in range(4) for p, value in elements if p == partition]
        if elements and all(value % 7 for value in in_order):
            assert sorted(harness.get_output()[-1][2]) == sorted(in_order)


def test_event_time_waits_for_the_slowest_partition():
    def build(env, s):
        return s.assign_timestamps_and_watermarks(monotonous()).key_by(first).process(Tumbling())

    for parallelism in (1, 3):
        with ProgramTestHarness(build, parallelism=parallelism) as harness:
            harness.push("s", ("a", 10, 1), ("b", 500, 1), partition=0)
            harness.push("s", ("a", 20, 1), partition=1)
            assert harness.run_epoch()["output"] == []
            harness.push("s", ("c", 500, 1), partition=0)
            harness.push("s", ("c", 501, 1), partition=2)
            assert harness.run_epoch()["output"] == [("a", 50, 2)]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_event_time_of_a_union_within_a_chain_is_the_least(swapped, shuffled):
    class Clock(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timer_service().current_watermark()

    def build(env, s):
        strict = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value)
        lenient = WatermarkStrategy.for_bounded_out_of_orderness(1000).with_timestamp_assigner(lambda value: value)
        if shuffled:
            s = s.key_by(lambda value: 0).reduce(max)
        branches = [s.assign_timestamps_and_watermarks(strategy) for strategy in (strict, lenient)]
        first, second = reversed(branches) if swapped else branches
        return first.union(second).filter(lambda value: True).key_by(lambda value: 0).process(Clock())

    with ProgramTestHarness(build) as harness:
        harness.push("s", 5000)
        harness.run_epoch()
        for value in (5001, 4500):  # in a source's next epoch event time begins anew
            harness.push("s", value)
            assert harness.run_epoch()["output"] == [3999, 3999] if value == 5001 else [4000, 4000]
        harness.end_input()


def test_an_idle_source_does_not_hold_back_the_other():
    def build(env, fast, slow):
        patient, hasty = (
            stream.assign_timestamps_and_watermarks(monotonous().with_idleness(100)) for stream in (fast, slow)
        )
        return patient.union(hasty).key_by(first).process(Tumbling())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("fast", ("a", 10, 1), ("a", 400, 1))
        assert harness.run_epoch()["output"] == []
        harness.advance_processing_time(100)
        harness.push("fast", ("b", 401, 1))
        assert harness.run_epoch()["output"] == [("a", 50, 1)]


def test_processing_time_timers_fire_without_data():
    class Later(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_processing_time_timer(value)

        def on_timer(self, timestamp, ctx):
            if timestamp < 30:
                ctx.timer_service().register_processing_time_timer(timestamp + 10)
            yield timestamp

    with ProgramTestHarness(lambda env, s: s.key_by(lambda x: x).process(Later()), parallelism=2) as harness:
        harness.push("s", 10, 20)
        assert harness.run_epoch()["output"] == []
        harness.set_processing_time(15)
        harness.restore(harness.snapshot())
        assert harness.run_epoch()["output"] == [10]
        harness.set_processing_time(100)
        assert sorted(harness.run_epoch()["output"]) == [20, 20, 30, 30]
        assert harness.run_epoch()["output"] == []


def test_a_failure_at_any_level_leaves_no_trace():
    def boom(value):
        if value >= 13:
            raise RuntimeError("unlucky")
        return value

    for index in range(3):

        def build(env, s, failing=index):
            steps = [boom if failing == n else (lambda x: x) for n in range(3)]
            first = s.map(steps[0]).key_by(lambda x: x % 3).reduce(max).map(steps[1])
            return first.key_by(lambda x: x % 2).reduce(lambda a, b: a + b).map(steps[2])

        with ProgramTestHarness(build, parallelism=2) as harness, ProgramTestHarness(build, parallelism=2) as healthy:
            for running in (harness, healthy):
                running.push("s", 1, 2)
                running.run_epoch()
            harness.push("s", 13, 13 - 3)
            with pytest.raises(OperatorError, match="unlucky"):
                harness.run_epoch()
            for running in (harness, healthy):
                running.push("s", 4, 5)
                running.run_epoch()
            assert harness.get_output() == healthy.get_output()


def test_rows_and_key_columns():
    with ProgramTestHarness(rows_with_columns, parallelism=3) as harness:
        harness.push("payments", row(card="a", amount=1), row(card="b", amount=2), row(card="a", amount=3))
        out = harness.run_epoch()["output"]
    assert sorted(out) == [("a", 1), ("a", 4), ("b", 2)]
    assert {value._fields for value in out} == {("card", "amount")}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_keys_that_cannot_be_routed(parallelism):
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    with pytest.raises(KeyTypeError, match="the record nan has the key nan"):
        env.from_collection([float("nan")]).key_by(lambda x: x).reduce(max).execute_and_collect()


def test_functions_that_cannot_travel():
    import threading

    lock = threading.Lock()
    with pytest.raises(ProgramError, match=r"cannot be pickled for the workers: TypeError.*create it in open\(\)"):
        StreamExecutionEnvironment().from_collection([1]).map(lambda x: (lock, x)).execute_and_collect()


def test_collections_are_run_to_their_end(capsys):
    env = StreamExecutionEnvironment()
    numbers = env.from_collection(range(5))
    assert numbers.map(lambda x: 2 * x).execute_and_collect() == [0, 2, 4, 6, 8]
    assert numbers.execute_and_collect(limit=2) == [0, 1]
    with numbers.execute_and_collect() as results:
        assert list(results) == list(range(5))
    numbers.filter(lambda x: x > 3).print("big")
    env.execute()
    assert capsys.readouterr().out == "big> 4\n"


def test_functions_do_not_change_the_collection_they_read():
    cart = ["ann"]

    def add(items):
        items.append("tea")
        return items

    carts = StreamExecutionEnvironment().from_collection([cart, cart]).map(add)
    for _ in range(2):
        assert carts.execute_and_collect() == [["ann", "tea"], ["ann", "tea"]]
    assert cart == ["ann"]


def test_several_outputs_of_one_stream():
    with ProgramTestHarness(lambda env, s: {"a": s, "b": s.map(str), "c": s}) as harness:
        harness.push("s", 1)
        assert harness.run_epoch() == {"a": [1], "b": ["1"], "c": [1]}


def test_execute_runs_new_sinks_only(capsys):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 2]).print()
    env.execute("first")
    assert capsys.readouterr().out == "1\n2\n"  # without a number: there is one subtask
    env.from_collection([3]).map(str).print("more")
    env.execute("second")
    assert capsys.readouterr().out == "more> 3\n"
    with pytest.raises(ProgramError, match="no output"):
        env.execute("third")


def test_several_subtasks_print_their_numbers(capsys):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.from_collection([1, 2, 3]).key_by(lambda value: value).map(str).print()
    env.execute()
    lines = sorted(capsys.readouterr().out.split())
    assert {line for line in lines if line.endswith(">")} <= {"1>", "2>"} and lines.count("1>") + lines.count("2>") == 3


class Clock(ProcessFunction):
    def process_element(self, value, ctx):
        yield value[1], ctx.timer_service().current_watermark()


def test_the_clock_of_a_stream_without_key_is_that_of_its_partition():
    def build(env, events):
        return events.assign_timestamps_and_watermarks(monotonous()).process(Clock())

    with ProgramTestHarness(build) as harness:
        for _ in range(2):
            harness.push("events", ("a", 100))
            harness.push("events", ("a", 50), partition=1)
            assert harness.run_epoch()["output"] == [(100, MIN_TIMESTAMP), (50, MIN_TIMESTAMP)]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_clock_of_a_stream_without_key_goes_on_over_a_restart(restarted):
    class Same(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

    def build(env, events):
        return events.key_by(first).process(Same()).assign_timestamps_and_watermarks(monotonous()).process(Clock())

    with ProgramTestHarness(build) as harness:
        harness.push("events", ("a", 100))
        assert harness.run_epoch()["output"] == [(100, MIN_TIMESTAMP)]
        if restarted:
            harness.restore(harness.snapshot())
        harness.push("events", ("a", 150))
        assert harness.run_epoch()["output"] == [(150, 99)]


def test_a_failing_close_leaves_no_task_open():
    closed = []

    class Closing(ProcessFunction):
        def process_element(self, value, ctx):
            yield value

        def close(self):
            closed.append(self)
            raise ValueError("no close")

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    left, right = (env.from_collection([1]).process(Closing()).uid(name) for name in ("left", "right"))
    job = env.local_job(left=left, right=right)
    job.run_epoch({source: [[Records([1])]] for source in job.program.sources})
    with pytest.raises(OperatorError, match="no close"):
        job.close()
    assert len(closed) == 2
