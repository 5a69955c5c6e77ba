from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    CheckpointedFunction,
    CountTrigger,
    DeadLetter,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ListStateDescriptor,
    OperatorError,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count_,
)
from pillarbox.testing import ProgramTestHarness

BAD = OutputTag[DeadLetter]("bad")
AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
AHEAD = WatermarkStrategy.for_bounded_out_of_orderness(50).with_timestamp_assigner(lambda event: event[1])


def windows(stream: Any, assigner: Any, strategy: Any = AT) -> Any:
    timed = stream.assign_timestamps_and_watermarks(strategy)
    return timed.key_by(lambda event: event[0]).window(assigner).side_output_errors(BAD)


def with_letters(results: Any) -> dict[str, Any]:
    letters = results.get_side_output(BAD).map(
        lambda letter: (letter.value, letter.key, letter.timestamp, letter.error)
    )
    return {"output": results, "bad": letters}


def run(build: Any, *events: Any) -> tuple[list[Any], list[Any]]:
    def program(env, events):
        return with_letters(build(events))

    with ProgramTestHarness(program) as harness:
        harness.push("events", *events)
        outputs = harness.end_input()
        return outputs["output"], outputs["bad"]


class Texts(AggregateFunction):
    def create_accumulator(self):
        return [0, ""]

    def add(self, value, accumulator):
        accumulator[0] += 1
        accumulator[1] += value[2]
        if value[2] == "bad":
            raise ValueError("bad")
        return accumulator

    def get_result(self, accumulator):
        if "worse" in accumulator[1]:
            raise ValueError("worse")
        return accumulator[0], "".join(sorted(accumulator[1]))  # panes have another order of elements

    def merge(self, accumulator, other):
        return [accumulator[0] + other[0], accumulator[1] + other[1]]


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(20, 10), EventTimeSessionWindows.with_gap(5)],
)
def test_a_record_that_cannot_be_added_is_in_no_window(assigner):
    events = [("k", 1, "a"), ("k", 3, "bad"), ("k", 4, "b"), ("k", 12, "bad"), ("j", 13, "c")]
    good = [event for event in events if event[2] != "bad"]
    output, bad = run(lambda s: windows(s, assigner, AHEAD).aggregate(Texts()), *events)
    assert sorted(output) == sorted(run(lambda s: windows(s, assigner, AHEAD).aggregate(Texts()), *good)[0])
    assert bad == [(("k", 3, "bad"), "k", 3, "ValueError: bad"), (("k", 12, "bad"), "k", 12, "ValueError: bad")]


def test_a_result_that_cannot_be_had_costs_the_window():
    events = [("k", 1, "a"), ("k", 2, "worse"), ("k", 11, "b")]
    output, bad = run(lambda s: windows(s, TumblingEventTimeWindows.of(10)).aggregate(Texts()), *events)
    assert output == [(1, "b")]
    assert bad == [(([2, "aworse"],), "k", 9, "ValueError: worse")]


SEEN = ValueStateDescriptor("seen")


class Joins(ProcessWindowFunction):
    def process(self, key, context, elements):
        state = context.global_state().get_state(SEEN)
        own = context.window_state().get_state(SEEN)
        seen = state.value() or []
        seen.append(len(elements))
        state.update(seen)
        own.update("mine")
        yield key, list(seen), [text for *_, text in elements]
        if any(text == "bad" for *_, text in elements):
            raise ValueError("bad")


def test_a_window_whose_function_raises_emits_and_changes_nothing():
    events = [("k", 1, "a"), ("k", 2, "bad"), ("k", 11, "b"), ("k", 12, "c"), ("k", 25, "bad"), ("k", 31, "d")]
    output, bad = run(lambda s: windows(s, TumblingEventTimeWindows.of(10)).process(Joins()), *events)
    assert output == [("k", [2], ["b", "c"]), ("k", [2, 1], ["d"])]
    assert bad == [
        ((("k", 1, "a"), ("k", 2, "bad")), "k", 9, "ValueError: bad"),
        ((("k", 25, "bad"),), "k", 29, "ValueError: bad"),
    ]


def test_a_window_whose_function_raised_is_purged_and_cleaned_up():
    def build(stream):
        keyed = stream.key_by(lambda event: event[0]).window(GlobalWindows.create())
        return keyed.trigger(PurgingTrigger.of(CountTrigger.of(2))).side_output_errors(BAD).process(Joins())

    events = [("k", 1, "a"), ("k", 2, "bad"), ("k", 3, "b"), ("k", 4, "c")]
    output, bad = run(build, *events)
    assert output == [("k", [2], ["b", "c"])]
    assert [value for value, *_ in bad] == [(("k", 1, "a"), ("k", 2, "bad"))]

    def tumbling(env, events):
        return windows(events, TumblingEventTimeWindows.of(10)).allowed_lateness(20).process(Joins())

    with ProgramTestHarness(tumbling) as harness:
        harness.push("events", ("k", 1, "a"), ("k", 2, "bad"), ("j", 100, "z"))
        harness.run_epoch()
        harness.push("events", ("j", 200, "z"))
        harness.run_epoch()
        harness.end_input()
        assert [key for key, *_ in harness.get_output()] == ["j", "j"]


class Spoils(ProcessWindowFunction):
    def process(self, key, context, elements):
        for element in elements:
            element["seen"] += 1
        if len(elements) == 1:
            raise ValueError("one is too few")
        yield [element["seen"] for element in elements]


def test_elements_that_a_function_changed_in_place_are_as_they_were():
    def build(env, events):
        timed = events.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event["at"])
        )
        windows = timed.key_by(lambda event: "k").window(TumblingEventTimeWindows.of(10)).allowed_lateness(100)
        return with_letters(windows.side_output_errors(BAD).process(Spoils()))

    with ProgramTestHarness(build) as harness:
        harness.push("events", {"at": 1, "seen": 0}, {"at": 20, "seen": 0})
        first = harness.run_epoch()
        harness.push("events", {"at": 2, "seen": 0})
        second = harness.run_epoch()
    assert first["output"] == [] and [letter[0] for letter in first["bad"]] == [({"at": 1, "seen": 0},)]
    assert second["output"] == [[1, 1]]


class AllJoins(ProcessAllWindowFunction):
    def process(self, context, elements):
        yield from elements
        if "bad" in elements:
            raise ValueError("bad")


def test_windows_of_a_whole_stream():
    stream = StreamExecutionEnvironment().from_collection(["a", "b", "c", "bad", "d", "e"])
    joined = stream.count_window_all(2).side_output_errors(BAD).process(AllJoins())
    results = joined.union(joined.get_side_output(BAD).map(lambda letter: ("dead", letter.value, letter.key)))
    assert sorted(results.execute_and_collect(), key=str) == [("dead", ("c", "bad"), None), "a", "b", "d", "e"]


def joined(first, second):
    if second[2] == "bad":
        raise ValueError("bad")
    return first[2] + second[2]


def test_windows_of_two_streams():
    env = StreamExecutionEnvironment()
    left = env.from_collection([("k", 1, "a"), ("k", 11, "b")]).assign_timestamps_and_watermarks(AT)
    right = env.from_collection([("k", 2, "c"), ("k", 3, "bad"), ("k", 12, "d")]).assign_timestamps_and_watermarks(AT)
    pairs = left.join(right).where(lambda event: event[0]).equal_to(lambda event: event[0])
    results = pairs.window(TumblingEventTimeWindows.of(10)).side_output_errors(BAD).apply(joined)
    letters = results.get_side_output(BAD).map(lambda letter: (letter.timestamp, sorted(letter.value)))
    assert sorted(results.union(letters).execute_and_collect(), key=str) == [
        (9, [(0, ("k", 1, "a")), (1, ("k", 2, "c")), (1, ("k", 3, "bad"))]),
        "bd",
    ]


class Picky(EventTimeTrigger):
    def on_element(self, element, timestamp, window, ctx):
        result = super().on_element(element, timestamp, window, ctx)
        if element[2] == "bad":
            raise ValueError("bad")
        return result


def test_a_record_that_a_trigger_refuses_is_in_no_window():
    def build(stream):
        return windows(stream, SlidingEventTimeWindows.of(20, 10)).trigger(Picky()).process(Joins())

    output, bad = run(build, ("k", 11, "a"), ("k", 12, "bad"), ("k", 13, "b"), ("j", 14, "bad"))
    assert [texts for _, _, texts in output] == [["a", "b"], ["a", "b"]]
    assert [value for value, *_ in bad] == [("k", 12, "bad"), ("j", 14, "bad")]


class Raising(EventTimeTrigger):
    def on_event_time(self, time, window, ctx):
        raise ValueError("a broken trigger")


def test_other_errors_in_timers_fail_the_task():
    def build(stream):
        return windows(stream, TumblingEventTimeWindows.of(10)).trigger(Raising()).process(Joins())

    with pytest.raises(OperatorError, match=r"failed in the event time timer at 9 .*a broken trigger"):
        run(build, ("k", 1, "a"))


def test_wrong_uses():
    stream = StreamExecutionEnvironment().from_collection([("k", 1, "a")])
    keyed: Any = stream.assign_timestamps_and_watermarks(AT).key_by(lambda event: event[0])
    with pytest.raises(ProgramError, match=r"side_output_errors\(\) takes an OutputTag, not 'bad'"):
        keyed.window(TumblingEventTimeWindows.of(10)).side_output_errors("bad")
    with pytest.raises(ProgramError, match="no function that could raise"):
        windows(stream, TumblingEventTimeWindows.of(10)).aggregate(n=count_())


class Fired(ProcessWindowFunction, CheckpointedFunction):
    def initialize_state(self, context):
        self.fired = context.get_operator_state_store().get_list_state(ListStateDescriptor("fired"))

    def process(self, key, context, elements):
        self.fired.add(key)
        yield key, len(self.fired.get())


def test_a_window_function_with_state_of_its_operator_has_no_letters():
    stream = StreamExecutionEnvironment().from_collection([("k", 1, "a"), ("k", 15, "a")])
    keyed = stream.assign_timestamps_and_watermarks(AT).key_by(lambda event: event[0])
    windowed = keyed.window(TumblingEventTimeWindows.of(10))
    with pytest.raises(ProgramError, match=r"side output for its errors .* and operator state"):
        windowed.side_output_errors(BAD).process(Fired()).execute_and_collect()


events = st.lists(st.tuples(st.sampled_from("kj"), st.integers(0, 60), st.sampled_from(["a", "b", "bad"])), max_size=12)


@given(events, st.sampled_from(["tumbling", "sliding", "sessions"]), st.integers(0, 2))
def test_a_program_that_never_saw_the_records_that_could_not_be_added(events, kind, restart_after):
    assigner: Any = {
        "tumbling": TumblingEventTimeWindows.of(10),
        "sliding": SlidingEventTimeWindows.of(20, 10),
        "sessions": EventTimeSessionWindows.with_gap(7),
    }[kind]

    def program(env, events):
        # Watermarks include the bad records.
        timed = events.assign_timestamps_and_watermarks(AHEAD)
        good = timed.filter(lambda event: event[2] != "bad")
        keyed = [stream.key_by(lambda event: event[0]).window(assigner) for stream in (timed, good)]
        guarded = keyed[0].allowed_lateness(15).side_output_errors(BAD).aggregate(Texts()).uid("guarded")
        return {
            "guarded": guarded,
            "bad": guarded.get_side_output(BAD),
            "oracle": keyed[1].allowed_lateness(15).aggregate(Texts()).uid("oracle"),
        }

    snapshot = None
    outputs: dict[str, list[Any]] = {"guarded": [], "bad": [], "oracle": []}
    parts = [events[: restart_after * 3], events[restart_after * 3 :]]
    for number, part in enumerate(parts):
        with ProgramTestHarness(program, snapshot=snapshot) as harness:
            harness.push("events", *part)
            for name, values in (harness.run_epoch() if number == 0 else harness.end_input()).items():
                outputs[name] += values
            snapshot = harness.snapshot()
    assert sorted(outputs["guarded"]) == sorted(outputs["oracle"])
    assert {letter.value[2] for letter in outputs["bad"]} <= {"bad"}
