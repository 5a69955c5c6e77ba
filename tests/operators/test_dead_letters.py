"""If a function raises, its record becomes a dead letter, and no other trace remains."""

from __future__ import annotations

import builtins
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DeadLetter,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProgramError,
    ReduceFunction,
    ReducingStateDescriptor,
    RuntimeExecutionMode,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TimeDomain,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    count_,
)
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import ConfigurationError
from pillarbox._operators.dead_letters.dead_letter import sort_out
from pillarbox.testing import ProgramTestHarness, harness_for

BAD = OutputTag[DeadLetter]("bad")
SIDE = OutputTag[Any]("side")


class Boom(Exception): ...


# -- the model: a program that never received the failing records --


class Last(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return tuple(accumulator)


def add_to(total: list[int], value: Any) -> list[int]:
    total += value
    return total


class Acts(KeyedProcessFunction):
    """Follows its records' instructions. Timers at odd times also act. Timers at multiples of three then raise.

    Args:
        raises: whether the function raises. If False, records that would fail have no effect.
        ttl: the time-to-live of its states.
    """

    def __init__(self, raises: bool, ttl: StateTtlConfig | None = None) -> None:
        self.raises = raises
        self.ttl = ttl

    def open(self, runtime_context):
        self.value = runtime_context.get_state(self.lives(ValueStateDescriptor("value")))
        self.list = runtime_context.get_list_state(self.lives(ListStateDescriptor("list")))
        self.map = runtime_context.get_map_state(self.lives(MapStateDescriptor("map")))
        self.folded = runtime_context.get_reducing_state(self.lives(ReducingStateDescriptor("folded", add_to)))
        aggregated = self.lives(AggregatingStateDescriptor("aggregated", Last()))
        self.aggregated = runtime_context.get_aggregating_state(aggregated)

    def lives(self, descriptor):
        if self.ttl is not None:
            descriptor.enable_time_to_live(self.ttl)
        return descriptor

    def process_element(self, record, ctx):
        _, fails, actions = record
        yield from self.act(actions, ctx)
        if fails:
            raise Boom(record)

    def on_timer(self, timestamp, ctx):
        fails = timestamp % 3 == 0
        if fails and not self.raises:
            return
        if timestamp % 2:
            yield from self.act(
                [("grow", timestamp), ("map put", timestamp), ("timer", timestamp + 4), ("emit", 0)], ctx
            )
        if fails:
            raise Boom(timestamp)

    def act(self, actions, ctx):
        timers = ctx.timer_service()
        for what, n in actions:
            held = self.value.value()
            if what == "grow":  # in place
                if held is None:
                    self.value.update([n])
                else:
                    held.append(n)
                    self.value.update(held)
            elif what == "list add":
                self.list.add([n])
            elif what == "list change":
                for element in self.list.get():
                    element.append(n)
                self.list.update(self.list.get())
            elif what == "map put":
                self.map.put(n, [n])
            elif what == "map change":
                for key, element in list(self.map.items()):
                    element.append(n)
                    self.map.put(key, element)
            elif what == "map fill":  # it is large from now on
                self.map.put_all({100 + number: [n] for number in range(70)})
            elif what == "map remove":
                self.map.remove(n)
            elif what == "fold":
                self.folded.add([n])
            elif what == "aggregate":
                self.aggregated.add(n)
            elif what == "clear":
                for state in (self.value, self.list, self.map, self.folded, self.aggregated):
                    state.clear()
            elif what == "timer":
                timers.register_event_time_timer(n)
            elif what == "delete timer":
                timers.delete_event_time_timer(n)
            elif what == "clock timer":
                timers.register_processing_time_timer(n)
            elif what == "emit":
                yield n
            elif what == "side":
                ctx.output(SIDE, n)


KINDS = (
    "grow", "list add", "list change", "map put", "map change", "map fill", "map remove", "fold", "aggregate", "clear",
    "timer", "delete timer", "clock timer", "emit", "side",
)  # fmt: skip
actions = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 30)), max_size=5)
records = st.tuples(st.just("record"), st.tuples(st.sampled_from("ab"), st.booleans(), actions))
steps = st.one_of(
    records,
    records,
    records,
    st.tuples(st.sampled_from(["watermark", "clock"]), st.integers(1, 40)),
    st.just(("restart", 0)),
)


class Runs:
    def __init__(self, raises: bool, ttl: StateTtlConfig | None) -> None:
        self.raises = raises
        self.ttl = ttl
        self.harness = self.new()
        self.watermark = 0
        self.said: list[Any] = []

    def new(self, **options: Any) -> Any:
        on_error: Any = BAD if self.raises else "fail"
        function = Acts(self.raises, self.ttl)
        return harness_for(function, key_by=lambda record: record[0], on_error=on_error, **options)

    def do(self, what: str, content: Any, number: int) -> None:
        harness = self.harness
        if what == "record":
            if self.raises or not content[1]:
                harness.push(content, number)
        elif what == "watermark":
            self.watermark = max(content, self.watermark)
            harness.push_watermark(self.watermark)
        elif what == "clock":
            harness.set_processing_time(max(content, harness.get_processing_time()))
        else:
            self.finish()
            self.harness = self.new(snapshot=harness.snapshot(), processing_time=harness.get_processing_time())
            harness.close()

    def finish(self) -> None:
        harness = self.harness
        self.said += [harness.get_elements(), harness.get_side_records(SIDE)]
        for key in "ab":
            timers = harness.event_time_timers_of(key), harness.processing_time_timers_of(key)
            self.said.append((key, harness.state_of(key), timers))
        self.said.append((sorted(harness.get_keys()), harness.num_event_time_timers()))


# Only reads remove expired state: the cleanup's extent depends on the number of records.
LIVES = [
    None,
    StateTtlConfig(10, cleanup_in_background=False),
    StateTtlConfig(
        10,
        cleanup_in_background=False,
        update_type=StateTtlConfig.UpdateType.OnReadAndWrite,
        state_visibility=StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp,
    ),
]


@given(st.lists(steps, max_size=14), st.sampled_from(LIVES))
def test_changes_of_a_failed_record_or_timer_are_undone(steps, ttl):
    guarded, oracle = Runs(raises=True, ttl=ttl), Runs(raises=False, ttl=ttl)
    for number, (what, content) in enumerate([*steps, ("restart", 0), ("watermark", 100), ("clock", 100)]):
        for machine in (guarded, oracle):
            machine.do(what, content, number)
    for machine in (guarded, oracle):
        machine.finish()
        machine.harness.close()
    assert guarded.said == oracle.said


class Lives(KeyedProcessFunction):
    def open(self, runtime_context):
        descriptor = ValueStateDescriptor("value")
        descriptor.enable_time_to_live(StateTtlConfig(10))
        self.value = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx):
        yield self.value.value()
        self.value.update(value)
        bad(value)


def test_a_time_to_live_is_that_of_the_last_good_access():
    with harness_for(Lives(), key_by=lambda value: "all", on_error=BAD) as harness:
        harness.push("a")
        harness.set_processing_time(5)
        harness.push("bad")
        harness.set_processing_time(11)
        harness.push("b")
        assert harness.get_output() == [None, None]


# -- content of a dead letter --


class Parse(MapFunction):
    def map(self, value):
        return helper(value)


def helper(value):
    return int(value)


def test_the_letter_of_a_record():
    with harness_for(Parse(), on_error=BAD) as harness:
        harness.push_all(["1", "two", "3"], [10, 20, 30])
        assert harness.get_output() == [1, 3]
        (letter,) = harness.get_side_output(BAD)
        (record,) = harness.get_side_records(BAD)
    assert (letter.value, letter.key, letter.timestamp, letter.operator) == ("two", None, 20, "Parse")
    assert letter.error == "ValueError: invalid literal for int() with base 10: 'two'"
    assert letter.timer is None and record.timestamp == 20
    assert [line.split()[-1] for line in letter.traceback.splitlines() if line.startswith("  File ")] == [
        "map",
        "helper",
    ]
    assert letter.traceback.splitlines()[-1] == letter.error
    assert pickle.loads(pickle.dumps(letter)) == letter


class Remind(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(100)
        ctx.timer_service().register_processing_time_timer(7)

    def on_timer(self, timestamp, ctx):
        yield "half way"
        raise Boom(ctx.time_domain())


def test_the_letter_of_a_timer():
    with harness_for(Remind(), key_by=str, on_error=BAD) as harness:
        harness.push("k", 5)
        harness.push_watermark(200)
        harness.set_processing_time(8)
        assert harness.get_output() == []
        by_event, by_clock = harness.get_side_records(BAD)
        assert harness.num_event_time_timers() == harness.num_processing_time_timers() == 0
        assert harness.snapshot().chunks is not None
    letter = by_event.value
    assert (letter.value, letter.key, letter.timestamp, by_event.timestamp) == (None, "k", 100, 100)
    assert by_event.value.timer is TimeDomain.EVENT_TIME and by_event.value.error == "Boom: TimeDomain.EVENT_TIME"
    letter = by_clock.value
    assert (letter.value, letter.key, letter.timestamp, by_clock.timestamp) == (None, "k", 7, None)
    assert by_clock.value.timer is TimeDomain.PROCESSING_TIME
    assert by_clock.value.as_text()[1:3] + by_clock.value.as_text()[6:] == ("'k'", 7, "processing time")


class Spoil(MapFunction):
    def map(self, value):
        value["amount"] = None
        raise Boom


def test_the_letter_has_the_record_as_it_came():
    with harness_for(Spoil(), on_error=BAD) as harness:
        harness.push({"amount": 3})
        assert harness.get_side_output(BAD)[0].value == {"amount": 3}


class Nasty(Exception):
    def __str__(self):
        raise Boom


class Nests(MapFunction):
    def map(self, value):
        try:
            raise KeyError(value)
        except KeyError as error:
            raise Nasty from error


def test_a_letter_comes_of_any_error_with_its_causes():
    with harness_for(Nests(), on_error=BAD) as harness:
        harness.push("k")
        (letter,) = harness.get_side_output(BAD)
    assert letter.error == "Nasty: <its message raised Boom>"
    assert "KeyError: 'k'" in letter.traceback and "direct cause" in letter.traceback


def test_a_letter_as_text_fits_a_column() -> None:
    with harness_for(Raises(ValueError("half of a pair: \ud83d")), on_error=BAD) as harness:
        harness.push("\ud83d")
        (letter,) = harness.get_side_output(BAD)
    assert letter.error == "ValueError: half of a pair: \\ud83d"
    for text in letter.as_text():
        assert text is None or text.encode()


# -- which errors are letters --


class Raises(MapFunction):
    def __init__(self, error):
        self.error = error

    def map(self, value):
        raise self.error


def group_of(*errors: Exception) -> Exception:
    """Return an exception group or, before Python 3.11, another error with the same attribute."""
    group: Any = getattr(builtins, "ExceptionGroup", None)
    error: Any = RuntimeError("tasks") if group is None else group("tasks", errors)
    if group is None:
        error.exceptions = errors
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
        ProgramError("mine"),
        group_of(ValueError("bad"), group_of(ConfigurationError("no journal"))),
    ],
    ids=repr,
)
def test_some_errors_fail_the_task_nevertheless(error):
    with harness_for(Raises(error), on_error=BAD) as harness:
        with pytest.raises(
            KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else (OperatorError, ProgramError)
        ):
            harness.push(1)
        assert harness.get_side_output(BAD) == []


def test_a_group_of_errors_of_the_record_is_a_letter() -> None:
    with harness_for(Raises(group_of(ValueError("bad"), KeyError("k"))), on_error=BAD) as harness:
        harness.push(1)
        (letter,) = harness.get_side_output(BAD)
    assert "ValueError: bad; KeyError: 'k'" in letter.error


class SetsNoTimer(ProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1)


def test_a_program_that_is_wrong_for_all_records_fails():
    with harness_for(SetsNoTimer(), on_error=BAD) as harness, pytest.raises(ProgramError, match="sets a timer"):
        harness.push(1)


def test_an_error_further_on_is_not_the_functions():
    env = StreamExecutionEnvironment()
    stream = env.from_collection([1, 2]).map(str, on_error=BAD)
    _ = stream.get_side_output(BAD).print()
    with pytest.raises(OperatorError, match="operator 'map: Raises' failed at the record '1'"):
        stream.map(Raises(Boom())).execute_and_collect()


# -- each kind of function --


def bad(value):
    if value == "bad":
        raise Boom(value)
    return value


class Maps(MapFunction):
    def map(self, value):
        return bad(value)


class FlatMaps(FlatMapFunction):
    def flat_map(self, value):
        yield value
        yield bad(value)


class Filters(FilterFunction):
    def filter(self, value):
        return bool(bad(value))


class Processes(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        ctx.output(SIDE, value)
        yield bad(value)


class Reduces(ReduceFunction):
    def reduce(self, value, other):
        return value + bad(other)


@pytest.mark.parametrize(
    ("function", "key_by", "output"),
    [
        (Maps(), None, ["a", "b"]),
        (Maps(), len, ["a", "b"]),
        (FlatMaps(), None, ["a", "a", "b", "b"]),
        (Filters(), None, ["a", "b"]),
        (Processes(), None, ["a", "a", "b", "b"]),
        (Reduces(), lambda value: "all", ["a", "ab"]),
    ],
)
def test_functions_of_one_stream(function, key_by, output):
    with harness_for(function, key_by=key_by, on_error=BAD) as harness:
        harness.push_all(["a", "bad", "b"])
        assert harness.get_output() == output
        assert [letter.value for letter in harness.get_side_output(BAD)] == ["bad"]
        assert harness.get_side_output(SIDE) == (["a", "b"] if isinstance(function, Processes) else [])


def test_a_filter_that_returns_no_bool():
    with harness_for(type("F", (FilterFunction,), {"filter": lambda self, value: value})(), on_error=BAD) as harness:
        harness.push_all([True, "yes", False])
        assert harness.get_output() == [True]
        assert harness.get_side_output(BAD)[0].error.startswith("TypeError: the function returned 'yes' (str)")


class CoMaps(CoMapFunction):
    def map1(self, value):
        return bad(value)

    def map2(self, value):
        return bad(value)


class CoFlatMaps(CoFlatMapFunction):
    def flat_map1(self, value):
        yield bad(value)

    flat_map2 = flat_map1


class CoProcesses(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield bad(value)

    process_element2 = process_element1


class KeyedCoProcesses(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element1(self, value, ctx):
        self.seen.add(value)
        bad(value)
        yield len(self.seen.get())

    process_element2 = process_element1


@pytest.mark.parametrize(
    ("function", "key_by", "output"),
    [
        (CoMaps(), None, ["a", "b"]),
        (CoMaps(), (str, str), ["a", "b"]),
        (CoFlatMaps(), None, ["a", "b"]),
        (CoProcesses(), None, ["a", "b"]),
        (KeyedCoProcesses(), (lambda value: "all", lambda value: "all"), [1, 2]),
    ],
)
def test_functions_of_two_streams(function, key_by, output):
    with harness_for(function, key_by=key_by, on_error=BAD) as harness:
        harness.push1("a")
        harness.push1("bad")
        harness.push2("bad")
        harness.push2("b")
        assert harness.get_output() == output
        assert [letter.value for letter in harness.get_side_output(BAD)] == ["bad", "bad"]


RULES = MapStateDescriptor("rules")


class Broadcasts(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        bad(value)
        yield dict(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        for held in rules.values():
            held.append(value)
        rules.put(value, [value])
        yield bad(value)


class KeyedBroadcasts(KeyedBroadcastProcessFunction):
    SEEN = ListStateDescriptor("seen")

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(self.SEEN)

    def process_element(self, value, ctx):
        self.seen.add(value)
        bad(value)
        yield from self.seen.get()

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, [value])
        ctx.apply_to_keyed_state(self.SEEN, lambda key, state: state.add(value))
        bad(value)


def test_functions_of_a_broadcast_stream():
    with harness_for(Broadcasts(), broadcast=[RULES], on_error=BAD) as harness:
        harness.push2("one")
        harness.push2("bad")
        harness.push1("bad")
        harness.push1("a")
        assert harness.get_output() == ["one", {"one": ["one"]}]
        assert [(letter.value, letter.key) for letter in harness.get_side_output(BAD)] == [("bad", None)] * 2


def test_functions_of_a_broadcast_stream_under_keys():
    with harness_for(KeyedBroadcasts(), key_by=len, broadcast=[RULES], on_error=BAD) as harness:
        harness.push1("a")
        harness.push1("be")
        _ = harness.snapshot()  # later changes must be recorded
        harness.push2("bad")
        harness.push2("one")
        harness.push1("bad")
        assert [harness.state_of(key) for key in (1, 2)] == [{"seen": ["a", "one"]}, {"seen": ["be", "one"]}]
        assert harness.state_of(3) == {}
        assert [(letter.value, letter.key) for letter in harness.get_side_output(BAD)] == [("bad", None), ("bad", 3)]
        snapshot = harness.snapshot()
    with harness_for(KeyedBroadcasts(), key_by=len, broadcast=[RULES], on_error=BAD, snapshot=snapshot) as harness:
        assert [harness.state_of(key) for key in (1, 2)] == [{"seen": ["a", "one"]}, {"seen": ["be", "one"]}]


@pytest.mark.parametrize("has_columns", [False, True])
def test_interval_join(has_columns):
    key: Any = "key" if has_columns else (lambda e: e[0])

    def joined(env, left, right):
        both = left.key_by(key).interval_join(right.key_by(key)).between(-5, 5)

        def pair(left, right, ctx):
            yield left[1], right[1]
            bad(right[2])

        joined = both.process(pair, on_error=BAD)
        return joined.union(
            joined.get_side_output(BAD).map(lambda letter: (letter.value, letter.key, letter.timestamp))
        )

    def timed(env, events):
        at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
        fields = Types.ROW_NAMED(["key", "at", "text"], [Types.STRING(), Types.LONG(), Types.STRING()])
        if has_columns:
            at = at.with_timestamp_assigner("at")
        return env.from_collection(events, fields if has_columns else None).assign_timestamps_and_watermarks(at)

    env = StreamExecutionEnvironment()
    left = timed(env, [("k", 10, ""), ("k", 11, "")])
    right = timed(env, [("k", 10, "bad"), ("k", 11, "good")])
    # The sources' order determines which record is last, and is the dead letter.
    results = joined(env, left, right).execute_and_collect()
    letters = [result for result in results if isinstance(result[0], tuple)]
    assert letters and all(key == "k" and value[2] in ("bad", "") for value, key, _ in letters)
    assert {(10, 11), (11, 11)}.issuperset(result for result in results if result not in letters)


class Counts(ProcessJoinFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, left, right, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield left, right, self.count.value()
        bad(right[2])


def test_the_state_of_a_function_of_pairs_is_undone():
    def build(env, left, right):
        at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
        left, right = (s.assign_timestamps_and_watermarks(at).key_by(lambda event: event[0]) for s in (left, right))
        pairs = left.interval_join(right).between(-10, 10).process(Counts(), on_error=BAD)
        return {"pairs": pairs, "letters": pairs.get_side_output(BAD)}

    with ProgramTestHarness(build) as harness:
        harness.push("left", ("k", 10, ""), ("k", 11, ""))
        harness.run_epoch()
        harness.push("right", ("k", 12, "good"))
        assert [count for _, _, count in harness.run_epoch()["pairs"]] == [1, 2]
        harness.push("right", ("k", 13, "bad"), ("k", 14, "good"))
        out = harness.run_epoch()
    assert [count for _, _, count in out["pairs"]] == [3, 4]
    assert [letter.value for letter in out["letters"]] == [("k", 13, "bad")]


@pytest.mark.parametrize("how", ["map", "flat_map", "filter", "process", "object", "stateful"])
def test_the_letter_has_the_key_also_where_the_function_has_no_state(how):
    functions: dict[str, Any] = {
        "map": lambda stream: stream.map(bad, on_error=BAD),
        "flat_map": lambda stream: stream.flat_map(lambda value: [bad(value)], on_error=BAD),
        "filter": lambda stream: stream.filter(lambda value: bool(bad(value)), on_error=BAD),
        "process": lambda stream: stream.process(Processes(), on_error=BAD),
        "object": lambda stream: stream.map(Maps(), on_error=BAD),
        "stateful": lambda stream: stream.process(lambda value, ctx: [bad(value)], on_error=BAD),
    }
    env = StreamExecutionEnvironment()
    keyed = functions[how](env.from_collection(["a", "bad"]).key_by(lambda value: value[0]))
    (letter,) = keyed.get_side_output(BAD).execute_and_collect()
    assert (letter.value, letter.key) == ("bad", "b")
    with harness_for(Processes(), key_by=len, on_error=BAD) as harness:
        harness.push("bad")
        assert harness.get_side_output(BAD)[0].key == 3


class Copied:
    copies = 0

    def __deepcopy__(self, memo):
        Copied.copies += 1
        return Copied()


class Fills(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield len(ctx.get_broadcast_state(RULES).keys())

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, Copied())
        bad("bad" if value % 2 else "good")


def test_a_large_broadcast_state_is_not_copied_for_each_record(monkeypatch):
    monkeypatch.setattr(Copied, "copies", 0)
    with harness_for(Fills(), broadcast=[RULES], on_error=BAD) as harness:
        for number in range(2_000):
            harness.push2(number)
        harness.push1("how many")
        assert harness.get_output() == [1_000]
        assert len(harness.get_side_output(BAD)) == 1_000
    assert Copied.copies < 10_000


# -- in programs --


class Listing(MapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))

    def map(self, value):
        self.seen.add(value)


def test_a_harness_refuses_letters_of_a_function_with_state_of_its_operator():
    with pytest.raises(ProgramError, match=r"'Listing' has .* and operator state"):
        harness_for(Listing(), on_error=BAD)


class Sums(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        self.sum.update([*(self.sum.value() or []), value])
        if value % 4 == 3:
            raise Boom(value)
        yield ctx.get_current_key(), sum(self.sum.value())


def program(env, numbers):
    sums = numbers.key_by(lambda n: n % 2).process(Sums(), on_error=BAD).name("sums")
    return sums.union(sums.get_side_output(BAD).map(lambda letter: (letter.key, letter.value, letter.operator)))


def test_a_program_that_is_restarted():
    with ProgramTestHarness(program) as harness:
        harness.push("numbers", 1, 2, 3)
        harness.run_epoch()
        snapshot = harness.snapshot()
    with ProgramTestHarness(program, snapshot=snapshot) as harness:
        harness.push("numbers", 4, 5, 7)
        harness.run_epoch()
        assert sorted(harness.get_output(), key=str) == [(0, 6), (1, 6), (1, 7, "sums")]


def test_letters_that_nobody_takes_are_said_and_counted(caplog):
    env = StreamExecutionEnvironment()
    assert env.from_collection(["1", "x", "y"]).map(int, on_error=BAD).execute_and_collect() == [1]
    assert [record.message for record in caplog.records if "was dropped" in record.message] == [
        "the function raised ValueError, and its record was dropped, because the side output 'bad' is not among the"
        " program's outputs: add get_side_output(...) to them. Further dropped records are only counted"
        " (operator 'map: int', subtask 0, epoch 0)"
    ]


def first_positive(number):
    if number < 0:
        raise ValueError(number)
    return number


@pytest.mark.parametrize(
    "step",
    [
        lambda stream: stream.map(first_positive, on_error=BAD),
        lambda stream: stream.key_by(lambda number: 0).process(
            lambda number, ctx: [first_positive(number)], on_error=BAD
        ),
        lambda stream: stream.key_by(first_positive, on_error=BAD),
        lambda stream: stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
                lambda number, _: first_positive(number)
            ),
            on_error=BAD,
        ),
    ],
    ids=["map", "process", "key_by", "timestamps"],
)
def test_letters_that_another_output_takes_are_no_reason_to_warn(step, caplog):
    env = StreamExecutionEnvironment()
    stream = step(env.from_collection([3, -1, 5]))
    letters = stream.get_side_output(BAD).map(lambda letter: letter.value)
    assert stream.map(lambda number: number).execute_and_collect() == [3, 5]
    assert letters.execute_and_collect() == [-1]
    assert [record.message for record in caplog.records if "was dropped" in record.message] == []


# -- folds of a field, keys, timestamps --


def letters_of(stream):
    return stream.get_side_output(BAD).map(lambda letter: ("letter", letter.value, letter.key, letter.error[:9]))


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("method", ["sum", "min", "max", "min_by", "max_by"])
def test_a_field_that_cannot_be_folded(method, mode):
    rows = [("a", None), ("a", 3), ("a", "x"), ("b", None), ("a", 1), ("c",), ("c", 7)]
    env = StreamExecutionEnvironment().set_runtime_mode(mode)
    folded = getattr(env.from_collection(rows).key_by(lambda row: row[0]), method)(1, on_error=BAD)
    out = folded.union(letters_of(folded)).execute_and_collect()
    letters = [(row[1], row[2]) for row in out if row[0] == "letter"]
    assert sorted(letters, key=repr) == [(("a", "x"), "a"), (("a", None), "a"), (("b", None), "b"), (("c",), "c")]
    results = sorted(row for row in out if row[0] != "letter")
    last = {"sum": 4, "max": 3, "max_by": 3}.get(method, 1)
    if mode is RuntimeExecutionMode.BATCH:
        assert results == [("a", last), ("c", 7)]
    else:
        assert results == sorted([("a", 3), ("a", last), ("c", 7)])


def test_a_name_of_what_has_positions():
    keyed = StreamExecutionEnvironment().from_collection([("a", 1)]).key_by(lambda row: row[0])
    with pytest.raises(OperatorError, match=r"sum\('n'\): a tuple has no field names: pass a field's position, from 0"):
        keyed.sum("n").execute_and_collect()


def test_a_first_record_whose_field_cannot_be_folded_fails_there():
    keyed = StreamExecutionEnvironment().from_collection([("a", None), ("a", 3)]).key_by(lambda row: row[0])
    with pytest.raises(OperatorError, match=r"operator 'sum' failed at the record \('a', None\)"):
        keyed.sum(1).execute_and_collect()


class Named(KeySelector):
    def get_key(self, value):
        return bad(value)


NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "key_type", "bads", "error"),
    [
        (bad, None, ["bad"], "Boom"),
        (Named(), None, ["bad"], "Boom"),
        (lambda value: NAN if value == "bad" else value, None, ["bad"], "KeyTypeError"),
        (lambda value: [value] if value == "bad" else value, None, ["bad"], "KeyTypeError"),
        (lambda value: 3 if value == "bad" else value, Types.STRING(), ["bad"], "TypeMismatchError"),
        (bad, None, [], ""),
        (bad, None, ["bad"] * 7, "Boom"),
    ],
)
def test_records_without_a_key(key, key_type, bads, error):
    env = StreamExecutionEnvironment().set_parallelism(2)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: 7)
    values = env.from_collection(["a", *bads, "b", "a"]).assign_timestamps_and_watermarks(at)
    keyed = values.key_by(key, key_type=key_type, on_error=BAD)
    with env.local_job(out=keyed.map(str), letters=keyed.get_side_output(BAD)) as job:
        out = job.run()
    assert sorted(out["out"]) == ["a", "a", "b"]
    assert [(letter.value, letter.key, letter.timestamp) for letter in out["letters"]] == [(b, None, 7) for b in bads]
    assert all(letter.error.startswith(error) for letter in out["letters"])
    assert {letter.operator for letter in out["letters"]} <= {"key_by after timestamps"}
    assert sum(report.counters.get("key_by-3.dead_letters", 0) for report in job.reports) in (0, len(bads))


@pytest.mark.parametrize("tags", [(BAD, BAD), (BAD, "fail"), ("fail", BAD)])
@pytest.mark.parametrize("method", ["join", "co_group"])
def test_records_without_a_key_join_nothing(method, tags):
    env = StreamExecutionEnvironment().set_parallelism(2)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: 7)
    sides = [["a", *(["bad"] if tag is BAD else []), "b"] for tag in tags]
    left, right = (env.from_collection(values).assign_timestamps_and_watermarks(at) for values in sides)
    pairs = getattr(left, method)(right).where(bad, on_error=tags[0]).equal_to(Named(), on_error=tags[1])
    windows = pairs.window(TumblingEventTimeWindows.of(10)).side_output_errors(BAD)
    if method == "join":
        out = windows.apply(lambda first, second: bad(f"{first}{second}"))
    else:
        out = windows.apply(lambda firsts, seconds: [bad("".join([*firsts, *seconds]))])
    with env.local_job(out=out, letters=pairs.get_side_output(BAD), windows=out.get_side_output(BAD)) as job:
        result = job.run()
    assert sorted(result["out"]) == ["aa", "bb"]
    assert [(letter.value, letter.key, letter.timestamp) for letter in result["letters"]] == [
        ("bad", None, 7)
    ] * tags.count(BAD)
    assert result["windows"] == []


def test_a_join_has_a_side_output_only_with_on_error():
    left, right = (StreamExecutionEnvironment().from_collection(["a"]),) * 2
    with pytest.raises(ProgramError, match=r"join\(\) has side outputs only after where\(key, on_error=tag\)"):
        left.join(right).where(len).equal_to(len).get_side_output(BAD)
    for method in ("where", "equal_to"):
        with pytest.raises(ProgramError, match=rf'{method}\(\): on_error= must be "fail" or the OutputTag'):
            getattr(left.co_group(right), method)(len, on_error=3)


def test_rows_without_a_key_stay_columns():
    fields = Types.ROW_NAMED(["key", "at"], [Types.DOUBLE(), Types.LONG()])
    batch = pa.RecordBatch.from_pydict({"key": [1.0, NAN, 2.0], "at": [1, 2, 3]})
    env = StreamExecutionEnvironment()
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    keyed = env.from_collection([], fields).assign_timestamps_and_watermarks(at).key_by("key", on_error=BAD)
    windows = keyed.window(TumblingEventTimeWindows.of(10)).aggregate(n=count_())
    with env.local_job(out=windows, letters=keyed.get_side_output(BAD)) as job:
        (source,) = job.program.sources
        records = ArrowRecords(batch)
        out = job.run_epoch({source: [[records]]}, bounded=True)
    assert [(row.key, row.n) for row in out["out"]] == [(1.0, 1), (2.0, 1)]
    ((letter,),) = (out["letters"],)
    assert (letter.value.at, letter.timestamp) == (2, 2) and "NaN" in letter.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError()])
@pytest.mark.parametrize("where", ["key", "timestamp"])
def test_some_errors_of_keys_and_timestamps_fail_the_task_nevertheless(error, where):
    def raises(value):
        raise error

    env = StreamExecutionEnvironment()
    values = env.from_collection(["a"])
    if where == "key":
        out: Any = values.key_by(raises, on_error=BAD)
    else:
        at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(raises)
        out = values.assign_timestamps_and_watermarks(at, on_error=BAD)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OperatorError):
        out.map(str).execute_and_collect()


def stamp_of(value):
    return value[1] if value[1] != "none" else bad("bad")


@pytest.mark.parametrize("bads", [[], [("x", None)], [("x", "none"), ("y", 2**80)], [("x", "soon")] * 3])
def test_records_without_a_timestamp(bads):
    env = StreamExecutionEnvironment()
    calls = []

    def extract(value):
        calls.append(value)
        return stamp_of(value)

    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(extract)
    values = [("a", 5), *bads, ("b", 3)]
    timed = env.from_collection(values).assign_timestamps_and_watermarks(at, on_error=BAD)
    out = timed.process(lambda value, ctx: [(value, ctx.timestamp())])
    with env.local_job(out=out, letters=timed.get_side_output(BAD)) as job:
        result = job.run()
    assert result["out"] == [(("a", 5), 5), (("b", 3), 3)]
    assert [letter.value for letter in result["letters"]] == bads
    assert [letter.operator for letter in result["letters"]] == ["timestamps"] * len(bads)


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("times", [[5, None, 3], [None], [None, None], [5, 3]])
def test_rows_without_a_timestamp(columnar, times):
    fields = Types.ROW_NAMED(["at"], [Types.LONG()])
    env = StreamExecutionEnvironment()
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = env.from_collection([], fields).assign_timestamps_and_watermarks(at, on_error=BAD)
    out = timed.process(lambda value, ctx: [ctx.timestamp()])
    with env.local_job(out=out, letters=timed.get_side_output(BAD)) as job:
        (source,) = job.program.sources
        batch = pa.RecordBatch.from_pydict({"at": pa.array(times, pa.int64())})
        records = ArrowRecords(batch)
        runs = records if columnar else Records(records.values)
        outputs = job.run_epoch({source: [[runs]]}, bounded=True)
    assert outputs["out"] == [time for time in times if time is not None]
    assert [letter.value.at for letter in outputs["letters"]] == [None] * times.count(None)


@pytest.mark.parametrize(
    ("build", "method"),
    [
        (lambda s: s.key_by(len, on_error="drop"), r"key_by\(\)"),
        (lambda s: s.key_by(len).sum(on_error=3), r"sum\(\)"),
        (
            lambda s: s.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks(), on_error="x"),
            r"assign_timestamps_and_watermarks\(\)",
        ),
    ],
)
def test_invalid_values_of_on_error_are_refused(build, method):
    with pytest.raises(ProgramError, match=method + ': on_error= must be "fail" or the OutputTag'):
        build(StreamExecutionEnvironment().from_collection(["a"]))


def test_a_keyed_stream_has_a_side_output_only_with_on_error():
    stream = StreamExecutionEnvironment().from_collection(["a"]).map(str)
    with pytest.raises(ProgramError, match="'key_by' has no side outputs"):
        stream.key_by(len).get_side_output(BAD)


@pytest.mark.parametrize("bad", [[], [4_999], [0, 9_999], [*range(100, 110)], [*range(10_000)]])
def test_bad_rows_are_found_in_halves(bad):
    looks = []
    are_bad = set(bad)
    columns = ArrowRecords(pa.RecordBatch.from_pydict({"n": np.arange(10_000)}))

    def look(part):
        looks.append(len(part))
        result = part.batch.column(0).to_pylist()
        if not are_bad.isdisjoint(result):
            raise OperatorError("bad") from ValueError("bad")
        return result

    refused: list[int] = []
    letters: Any = SimpleNamespace(write=lambda cause, value, key, stamp: refused.append(value.n))
    parts = [*sort_out(columns, look, (OperatorError,), letters, in_halves=True)]
    good = [n for n in range(10_000) if n not in are_bad]
    assert [n for _, result in parts for n in result] == [n for part, _ in parts for n in part] == good
    assert refused == bad
    assert len(looks) <= min(1 + 2 * 14 * len(bad), 2 * 10_000)
