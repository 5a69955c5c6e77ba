from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CoGroupFunction,
    CountTrigger,
    EventTimeSessionWindows,
    Evictor,
    FlatJoinFunction,
    GlobalWindows,
    JoinFunction,
    OutputTag,
    ProcessJoinFunction,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, row

LATE_LEFT, LATE_RIGHT = OutputTag("late left"), OutputTag("late right")
# (is it of the left stream, key, time, number); after each of them an epoch may end.
EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 60), st.booleans()), max_size=40)
BOUND = st.integers(-12, 12)


def timed(stream):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner("at")
    return stream.assign_timestamps_and_watermarks(strategy)


class Pair(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        assert ctx.get_current_key() == left.key == right.key
        assert (ctx.get_left_timestamp(), ctx.get_right_timestamp()) == (left.at, right.at)
        yield left.number, right.number, ctx.timestamp()


def run(build, events, parallelism, restarts):
    harness = ProgramTestHarness(build, parallelism=parallelism)
    out: dict[str, list[Any]] = {}
    watermarks: dict[int, int | None] = {}
    latest: dict[str, int] = {}

    def take(outputs):
        for name, values in outputs.items():
            out.setdefault(name, []).extend(values)

    try:
        pending: list[tuple[str, int]] = []
        # Each epoch has both streams, so event time does not depend on the order within it.
        for number, (is_left, key, at, ends) in enumerate(events):
            name = "lefts" if is_left else "rights"
            harness.push(name, row(key=key, at=at, number=number))
            pending.append((name, at))
            watermarks[number] = min(latest.values()) - 6 if len(latest) == 2 else None
            if not ends:
                continue
            if number < len(restarts) and restarts[number]:
                harness.fail_epoch()
            take(harness.run_epoch())
            for side, time in pending:
                latest[side] = max(time, latest.get(side, time))
            pending = []
            if number < len(restarts) and restarts[number]:
                snapshot = harness.snapshot()
                harness.close()
                harness = ProgramTestHarness(build, parallelism=parallelism, snapshot=snapshot)
        take(harness.end_input())
        state = [(report.keys, report.event_time_timers) for report in harness._job.reports if report.level == 1]
        assert all(counts == (0, 0) for counts in state), state
    finally:
        harness.close()
    return out, watermarks


def is_late(event, watermark):
    return watermark is not None and event[2] < watermark


@given(EVENTS, BOUND, BOUND, st.booleans(), st.booleans(), st.integers(1, 3), st.lists(st.booleans(), max_size=40))
def test_interval_join(events, first, second, no_lower, no_upper, parallelism, restarts):
    lower, upper = min(first, second), max(first, second)
    if upper - lower < no_lower + no_upper:
        no_lower = no_upper = False

    def build(env, lefts, rights):
        joined = timed(lefts).key_by("key").interval_join(timed(rights).key_by("key")).between(lower, upper)
        joined = joined.lower_bound_exclusive() if no_lower else joined
        joined = joined.upper_bound_exclusive() if no_upper else joined
        pairs = joined.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT).process(Pair())
        return {
            "pairs": pairs,
            "late left": pairs.get_side_output(LATE_LEFT),
            "late right": pairs.get_side_output(LATE_RIGHT),
        }

    out, watermarks = run(build, events, parallelism, restarts)
    # Within an epoch event time moves on between runs; there is one run a source here, so not before its end.
    late = {number for number, event in enumerate(events) if is_late(event, watermarks[number])}
    expected = Counter(
        (i, j, max(left[2], right[2]))
        for i, left in enumerate(events)
        for j, right in enumerate(events)
        if left[0] and not right[0] and left[1] == right[1] and i not in late and j not in late
        if lower + no_lower <= right[2] - left[2] <= upper - no_upper
    )
    assert Counter(out.get("pairs", [])) == expected
    assert sorted(record.number for record in out.get("late left", [])) == sorted(n for n in late if events[n][0])
    assert sorted(record.number for record in out.get("late right", [])) == sorted(n for n in late if not events[n][0])


def test_a_key_with_many_records_finds_its_partners_in_order():
    def build(env, lefts, rights):
        return (
            timed(lefts)
            .key_by("key")
            .interval_join(timed(rights).key_by("key"))
            .between(-2, 2)
            .process(lambda left, right, ctx: [(left.at, right.at)])
        )

    with ProgramTestHarness(build) as harness:
        harness.push_all("rights", [row(key=1, at=at) for at in range(2_000, 0, -1)])
        assert harness.run_epoch()["output"] == []
        harness.push("lefts", row(key=1, at=0))
        assert harness.run_epoch()["output"] == [(0, 1), (0, 2)]
        harness.push("lefts", row(key=1, at=1_000))
        harness.fail_epoch()
        harness.push("rights", row(key=1, at=1_001))
        out = harness.run_epoch()["output"]
    assert sorted(out) == [(1_000, at) for at in (998, 999, 1_000, 1_001, 1_001, 1_002)]


WINDOWS = {
    "tumbling": (TumblingEventTimeWindows.of(10), lambda at: {at - at % 10}),
    "sliding": (SlidingEventTimeWindows.of(10, 5), lambda at: {at - at % 5, at - at % 5 - 5}),
}


@pytest.mark.slow("a model")
@pytest.mark.parametrize("kind", WINDOWS)
@given(
    events=EVENTS,
    parallelism=st.integers(1, 3),
    restarts=st.lists(st.booleans(), max_size=40),
)
def test_join_and_co_group(kind, events, parallelism, restarts):
    assigner, starts = WINDOWS[kind]

    class Both(CoGroupFunction):
        def co_group(self, firsts, seconds):
            yield sorted(first.number for first in firsts), sorted(second.number for second in seconds)

    class Flat(FlatJoinFunction):
        def join(self, first, second):
            return [(first.number, second.number)] * 2

    # Nothing is late, so the expected result does not depend on epochs.
    def all_in_time(stream):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner("at")
        return stream.assign_timestamps_and_watermarks(strategy)

    def build(env, lefts, rights):
        left, right = all_in_time(lefts), all_in_time(rights)
        joined = left.join(right).where("key").equal_to(lambda record: record.key).window(assigner)
        flat = left.join(right).where("key").equal_to("key").window(assigner)
        grouped = left.co_group(right).where("key").equal_to("key").window(assigner)
        return {
            "joined": joined.apply(lambda first, second: (first.number, second.number)),
            "flat": flat.apply(Flat()),
            "grouped": grouped.apply(Both()),
        }

    out, _ = run(build, events, parallelism, restarts)
    windows: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for number, (is_left, key, at, _) in enumerate(events):
        for start in starts(at):
            windows.setdefault((key, start), ([], []))[not is_left].append(number)
    pairs = Counter((i, j) for firsts, seconds in windows.values() for i in firsts for j in seconds)
    assert Counter(out.get("joined", [])) == pairs
    assert Counter(out.get("flat", [])) == pairs + pairs
    assert sorted(out.get("grouped", [])) == sorted(windows.values())


def test_sessions_are_of_both_streams():
    def build(env, lefts, rights):
        joined = timed(lefts).join(timed(rights)).where("key").equal_to("key")
        return joined.window(EventTimeSessionWindows.with_gap(10)).apply(lambda a, b: (a.number, b.number))

    with ProgramTestHarness(build) as harness:
        harness.push("lefts", row(key=1, at=0, number=1), row(key=1, at=40, number=2))
        harness.push("rights", row(key=1, at=8, number=3), row(key=1, at=16, number=4))
        assert sorted(harness.end_input()["output"]) == [(1, 3), (1, 4)]


def test_windows_of_two_streams_with_trigger_and_evictor():
    class OfTheFirst(Evictor):
        def evict_before(self, elements, window, context):
            elements[:] = [element for element in elements if element.value[0] == 1 or element.value[1].number > 1]

        def evict_after(self, elements, window, context):
            elements.clear()

    def build(env, lefts, rights):
        pairs = lefts.join(rights).where("key").equal_to("key").window(GlobalWindows.create())
        return pairs.trigger(CountTrigger.of(3)).evictor(OfTheFirst()).apply(lambda a, b: (a.number, b.number))

    with ProgramTestHarness(build) as harness:
        for number, name in enumerate(["lefts", "lefts", "rights", "lefts", "rights", "rights"], 1):
            harness.push(name, row(key=1, number=number))
            harness.run_epoch()
        assert harness.get_output() == [(2, 3), (4, 5), (4, 6)]


class Add(JoinFunction):
    def join(self, first, second):
        return first + second


def test_wrong_uses_are_refused():
    env = StreamExecutionEnvironment()
    left, right = env.from_collection([1]), env.from_collection([2])
    minute = TumblingEventTimeWindows.of("1 minute")
    with pytest.raises(ProgramError, match=r"join\(\): where\(...\) is missing"):
        left.join(right).window(minute)
    with pytest.raises(ProgramError, match=r"co_group\(\): equal_to\(...\) is missing"):
        left.co_group(right).where(str).window(minute)
    pairs = left.join(right).where(str).equal_to(str)
    with pytest.raises(ProgramError, match="a window needs a window assigner"):
        pairs.window("1 minute")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"pass an instance: Add\(\)"):
        pairs.window(minute).apply(Add)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"interval_join\(\): the first keys are STRING"):
        first, second = left.key_by(str, Types.STRING()), right.key_by(int, Types.LONG())
        first.interval_join(second)
    with pytest.raises(ProgramError, match=r"join\(\) takes a stream, not 5"):
        left.join(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="takes a keyed stream"):
        left.key_by(str).interval_join(right)  # type: ignore[arg-type]
    near = left.key_by(str).interval_join(right.key_by(str))
    with pytest.raises(ProgramError, match="the lower bound, '5 seconds', is above the upper bound, '1 second'"):
        near.between("5 seconds", "1 second")
    with pytest.raises(ProgramError, match=r"interval_join\(\) has no bounds"):
        near.process(Pair())
    with pytest.raises(ProgramError, match="with exclusive bounds excludes all pairs"):
        near.between(0, 0).lower_bound_exclusive().upper_bound_exclusive().process(Pair())
    with pytest.raises(ProgramError, match=r"side_output_left_late_data\(\) takes an OutputTag, not 'late'"):
        near.side_output_left_late_data("late")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="'interval_join: Pair' uses event time, but the records of 'collection'"):
        near.between(0, 1).process(Pair()).execute_and_collect()
