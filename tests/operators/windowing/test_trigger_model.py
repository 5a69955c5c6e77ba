"""All kinds of windows, triggers and evictors with late records and restarts, compared with ``window_oracle.py``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    ListStateDescriptor,
    NeverTrigger,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from pillarbox._operators.functions.metric_group import LATE_RECORDS_DROPPED
from pillarbox._operators.windowing.api.count_windows import CountSlidingWindowAssigner
from tests.operators.windowing.window_oracle import Evict, Kind, Open, When, WindowOracle
from tests.operators.windowing.windows import open_windows

LATE = OutputTag("late")
LONG = bool(os.environ.get("PILLARBOX_LONG"))

# Window ends and clock times are even, so no processing-time window ends in the current millisecond.
evens = st.integers(1, 10).map(lambda number: 2 * number)


# -- windows --


def _times(assigners: tuple[Any, Any], by_event_time: bool, *lengths: int) -> Any:
    return assigners[not by_event_time].of(*lengths)


def tumbling(size: int, offset: int, by_event_time: bool) -> Kind:
    offset %= size
    assigner = _times((TumblingEventTimeWindows, TumblingProcessingTimeWindows), by_event_time, size, offset)

    def windows(time: int, index: int) -> list[tuple[int, ...]]:
        return [(start, start + size) for start in range(time - size + 1, time + 1) if (start - offset) % size == 0]

    return Kind(f"tumbling({size}, {offset}, {by_event_time})", assigner, windows, by_event_time)


def sliding(size: int, slide: int, offset: int, by_event_time: bool) -> Kind:
    offset %= slide
    assigner = _times((SlidingEventTimeWindows, SlidingProcessingTimeWindows), by_event_time, size, slide, offset)

    def windows(time: int, index: int) -> list[tuple[int, ...]]:
        return [(start, start + size) for start in range(time - size + 1, time + 1) if (start - offset) % slide == 0]

    return Kind(f"sliding({size}, {slide}, {offset}, {by_event_time})", assigner, windows, by_event_time)


def cumulating(step: int, steps: int, offset: int, by_event_time: bool) -> Kind:
    size = step * steps
    offset %= size
    assigner = _times((CumulativeEventTimeWindows, CumulativeProcessingTimeWindows), by_event_time, size, step, offset)

    def windows(time: int, index: int) -> list[tuple[int, ...]]:
        (start,) = [start for start in range(time - size + 1, time + 1) if (start - offset) % size == 0]
        return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]

    return Kind(f"cumulating({step}, {steps}, {offset}, {by_event_time})", assigner, windows, by_event_time)


def sessions(gap: int, by_event_time: bool) -> Kind:
    kind = EventTimeSessionWindows if by_event_time else ProcessingTimeSessionWindows
    name = f"sessions({gap}, {by_event_time})"
    assigner: Any = kind.with_gap(gap)
    return Kind(name, assigner, lambda time, index: [(time, time + gap)], by_event_time, merges=True)


def dynamic(most: int) -> Kind:
    def gap(time: int) -> int:
        return 1 + time % most

    assigner = EventTimeSessionWindows.with_dynamic_gap(lambda record: gap(record[2]))
    return Kind(f"dynamic({most})", assigner, lambda time, index: [(time, time + gap(time))], merges=True)


def counted(size: int, slide: int) -> Kind:
    def windows(time: int, index: int) -> list[tuple[int, ...]]:
        return [(number,) for number in range(index + 1) if number * slide <= index < number * slide + size]

    assigner = CountSlidingWindowAssigner.of(size, slide)
    return Kind(f"counted({size}, {slide})", assigner, windows, by_event_time=False, ends=False)


def all_in_one() -> Kind:
    return Kind("global", GlobalWindows.create(), lambda time, index: [()], by_event_time=False, ends=False)


kinds = st.one_of(
    st.builds(tumbling, evens, evens, st.booleans()),
    st.builds(sliding, evens, evens, evens, st.booleans()),
    st.builds(cumulating, evens, st.integers(1, 4), evens, st.booleans()),
    st.builds(sessions, evens, st.booleans()),
    st.builds(dynamic, st.integers(1, 12)),
    st.builds(counted, st.integers(1, 4), st.integers(1, 4)),
    st.builds(all_in_one),
)


# -- triggers --


def at_end() -> When:
    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        if window.last <= all.watermark:
            return "fire"
        window.timers.add(("event", window.last))
        return ""

    def timer(window: Open, clock: str, time: int, all: WindowOracle) -> str:
        return "fire" if clock == "event" and time == window.last else ""

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        if window.last > all.watermark:
            window.timers.add(("event", window.last))

    return When("event", EventTimeTrigger.create(), element, timer, merged)


def by_the_clock() -> When:
    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        window.timers.add(("processing", window.last))
        return ""

    def timer(window: Open, clock: str, time: int, all: WindowOracle) -> str:
        return "fire" if clock == "processing" else ""

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        if window.last > all.clock:
            window.timers.add(("processing", window.last))

    return When("processing", ProcessingTimeTrigger.create(), element, timer, merged)


def every_nth(number: int) -> When:
    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        window.memo["count"] = window.memo.get("count", 0) + 1
        if window.memo["count"] < number:
            return ""
        window.memo["count"] = 0
        return "fire"

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        window.memo["count"] = sum(part.memo.get("count", 0) for part in parts)

    return When(f"count({number})", CountTrigger.of(number), element, merged=merged)


def _earliest(window: Open, parts: list[Open], clock: str) -> None:
    pending = [part.memo["next"] for part in parts if part.memo.get("next") is not None]
    if pending:
        window.memo["next"] = min(pending)
        window.timers.add((clock, min(pending)))


def every(interval: int) -> When:
    def plan(window: Open, time: int) -> None:
        window.memo["next"] = min(time, window.last)
        window.timers.add(("event", window.memo["next"]))

    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        if window.last <= all.watermark:
            return "fire"
        window.timers.add(("event", window.last))
        if window.memo.get("next") is None:
            plan(window, (time // interval + 1) * interval)
        return ""

    def timer(window: Open, clock: str, time: int, all: WindowOracle) -> str:
        if clock != "event":
            return ""
        if time == window.last:
            return "fire"
        if time != window.memo.get("next"):
            return ""
        plan(window, time + interval)
        return "fire"

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        _earliest(window, parts, "event")

    return When(f"continuous event({interval})", ContinuousEventTimeTrigger.of(interval), element, timer, merged)


def every_by_the_clock(interval: int) -> When:
    def plan(window: Open, now: int, time: int) -> None:
        # Also at the window's end, unless the clock has passed it.
        window.memo["next"] = window.last if now < window.last < time else time
        window.timers.add(("processing", window.memo["next"]))

    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        if window.memo.get("next") is None:
            plan(window, all.clock, (all.clock // interval + 1) * interval)
        return ""

    def timer(window: Open, clock: str, time: int, all: WindowOracle) -> str:
        if clock != "processing" or time != window.memo.get("next"):
            return ""
        plan(window, time, time + interval)
        return "fire"

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        _earliest(window, parts, "processing")

    trigger = ContinuousProcessingTimeTrigger.of(interval)
    return When(f"continuous processing({interval})", trigger, element, timer, merged)


def further_than(threshold: int) -> When:
    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        last = window.memo.setdefault("last", time)
        if abs(time - last) <= threshold:
            return ""
        window.memo["last"] = time
        return "fire"

    trigger = DeltaTrigger.of(threshold, lambda last, record: abs(record[2] - last[2]))
    return When(f"delta({threshold})", trigger, element, merges=False)


class Silent(NeverTrigger):
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any, /) -> None:
        pass


def never() -> When:
    return When("never", Silent(), lambda window, value, time, all: "")


class Budget(Trigger):
    """Fires and purges when the elements' sum reaches a limit, and some time after an odd timestamp."""

    _sum = ReducingStateDescriptor("sum", lambda value, other: value + other)
    _times = ListStateDescriptor("times")

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def on_element(self, element, timestamp, window, ctx):
        if timestamp % 2:
            ctx.register_event_time_timer(timestamp + 8)
            ctx.get_partitioned_state(self._times).add(timestamp + 8)
        worth = ctx.get_partitioned_state(self._sum)
        worth.add(element[1] % 5)
        if worth.get() < self.budget:
            return TriggerResult.CONTINUE
        worth.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time, window, ctx):
        times = ctx.get_partitioned_state(self._times)
        return TriggerResult.FIRE if time in list(times.get()) else TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self._sum)
        ctx.merge_partitioned_state(self._times)
        for time in ctx.get_partitioned_state(self._times).get():
            ctx.register_event_time_timer(time)

    def clear(self, window, ctx):
        times = ctx.get_partitioned_state(self._times)
        for time in times.get():
            ctx.delete_event_time_timer(time)
        times.clear()
        ctx.get_partitioned_state(self._sum).clear()


def budget(most: int) -> When:
    def element(window: Open, value: int, time: int, all: WindowOracle) -> str:
        if time % 2:
            window.timers.add(("event", time + 8))
            window.memo["times"] = [*window.memo.get("times", []), time + 8]
        window.memo["sum"] = window.memo.get("sum", 0) + value % 5
        if window.memo["sum"] < most:
            return ""
        window.memo["sum"] = 0
        return "fire purge"

    def timer(window: Open, clock: str, time: int, all: WindowOracle) -> str:
        return "fire" if clock == "event" and time in window.memo.get("times", []) else ""

    def merged(window: Open, parts: list[Open], all: WindowOracle) -> None:
        window.memo["sum"] = sum(part.memo.get("sum", 0) for part in parts)
        window.memo["times"] = [time for part in parts for time in part.memo.get("times", [])]
        window.timers |= {("event", time) for time in window.memo["times"]}

    return When(f"budget({most})", Budget(most), element, timer, merged)


def purging(when: When) -> When:
    def with_purge(answer: str) -> str:
        return "fire purge" if answer == "fire" else answer

    return When(
        f"purging({when})",
        PurgingTrigger.of(when.trigger),
        lambda *arguments: with_purge(when.element(*arguments)),
        lambda *arguments: with_purge(when.timer(*arguments)),
        when.merged,
        when.merges,
    )


plain_triggers = st.one_of(
    st.builds(at_end),
    st.builds(by_the_clock),
    st.builds(every_nth, st.integers(1, 4)),
    st.builds(every, st.integers(1, 15)),
    st.builds(every_by_the_clock, evens),
    st.builds(further_than, st.integers(0, 20)),
    st.builds(never),
    st.builds(budget, st.integers(1, 12)),
)
triggers = st.tuples(plain_triggers, st.booleans()).map(lambda both: purging(both[0]) if both[1] else both[0])


def default_of(kind: Kind) -> When:
    if not kind.ends:
        return purging(every_nth(kind.assigner.size))
    return at_end() if kind.by_event_time else by_the_clock()


# -- evictors --


class Odd(Evictor):
    """Evicts every other element before the window function, and the first element after it."""

    def evict_before(self, elements, window, ctx):
        elements[:] = elements[1::2]

    def evict_after(self, elements, window, ctx):
        del elements[:1]


def last_ones(number: int, after: bool) -> Evict:
    def last_elements(elements: list[Any]) -> list[Any]:
        return elements[len(elements) - number :] if len(elements) > number else elements

    name = f"count({number}, {after})"
    return Evict(name, CountEvictor.of(number, after), **{"after" if after else "before": last_elements})


def latest(size: int, after: bool) -> Evict:
    def latest_elements(elements: list[Any]) -> list[Any]:
        return [element for element in elements if element[1] > max(time for _, time in elements) - size]

    return Evict(
        f"time({size}, {after})", TimeEvictor.of(size, after), **{"after" if after else "before": latest_elements}
    )


def nearest(threshold: int, after: bool) -> Evict:
    def nearest_elements(elements: list[Any]) -> list[Any]:
        return [element for element in elements if abs(element[1] - elements[-1][1]) < threshold]

    evictor = DeltaEvictor.of(threshold, lambda record, last: abs(record[2] - last[2]), after)
    return Evict(f"delta({threshold}, {after})", evictor, **{"after" if after else "before": nearest_elements})


evictors = st.one_of(
    st.builds(last_ones, st.integers(0, 4), st.booleans()),
    st.builds(latest, st.integers(1, 20), st.booleans()),
    st.builds(nearest, st.integers(1, 20), st.booleans()),
    st.just(Evict("odd", Odd(), lambda elements: elements[1::2], lambda elements: elements[1:])),
)


# -- programs --


class Values(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator):
        return list(accumulator)

    def merge(self, accumulator, other):
        return accumulator + other


class Folded(ProcessWindowFunction):
    def process(self, key, context, elements):
        (values,) = elements
        yield key, tuple(context.window()), values


class Whole(ProcessWindowFunction):
    fired = ValueStateDescriptor("fired")

    def __init__(self, numbers: bool) -> None:
        self.numbers = numbers

    def process(self, key, context, elements):
        number = None
        if self.numbers:
            state = context.window_state().get_state(self.fired)
            number = (state.value() or 0) + 1
            state.update(number)
        yield key, tuple(context.window()), [value for _, value, _ in elements], number

    def clear(self, context):
        if self.numbers:
            context.window_state().get_state(self.fired).clear()


def build_windows(stream: Any, kind: Kind, when: When | None, evict: Evict | None, lateness: int, how: str) -> Any:
    windows = stream.window(kind.assigner)
    if lateness:
        windows = windows.allowed_lateness(lateness)
    if when is not None:
        windows = windows.trigger(when.trigger)
    if evict is not None:
        windows = windows.evictor(evict.evictor)
    if kind.by_event_time:
        windows = windows.side_output_late_data(LATE)
    if how == "process":
        return windows.process(Whole(not kind.merges))
    return windows.aggregate(Values(), Folded())


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("records"), st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 40)), min_size=1, max_size=6)
        ),
        st.tuples(st.just("watermark"), st.integers(-20, 50)),
        st.tuples(st.just("clock"), st.integers(1, 10).map(lambda number: 2 * number)),
        st.sampled_from([("restart", None), ("epoch", None)]),
    ),
    min_size=8,
    max_size=60 if LONG else 20,
)


def plain(results: list[Any], how: str, kind: Kind) -> list[Any]:
    if how == "process":
        return sorted((key, span, values, None if kind.merges else fired) for key, span, values, fired in results)
    return sorted((key, span, sorted(values)) for key, span, values, *_ in results)


@given(
    kinds,
    st.one_of(st.none(), triggers, triggers, triggers),
    st.one_of(st.none(), st.none(), evictors),
    st.sampled_from(["process", "aggregate"]),
    st.sampled_from([0, 0, 3, 20]),
    steps,
)
def test_windows_with_any_trigger_and_evictor_do_what_is_told_of_them(kind, when, evict, how, lateness, steps):
    if not kind.by_event_time:
        lateness = 0
    if when is not None and kind.merges and not when.merges:
        when = never()
    if kind.name == "global" and when is None:
        when = every_nth(3)

    def build(stream: Any) -> Any:
        return build_windows(stream, kind, when, evict, lateness, how)

    oracle = WindowOracle(kind, when or default_of(kind), evict, lateness, folds=how == "aggregate")
    harness = open_windows(build)
    number = late = 0
    try:
        for what, content in [*steps, ("watermark", 10_000), ("clock", 10_000 if kind.ends else 2)]:
            harness.clear_output()
            if what == "restart":
                snapshot = harness.snapshot()
                harness.close()
                harness = open_windows(build, snapshot=snapshot, processing_time=oracle.clock)
            elif what == "epoch":
                harness.snapshot()
            elif what == "watermark":
                if content < oracle.watermark:
                    continue
                harness.push_watermark(content)
                oracle.set_watermark(content)
            elif what == "clock":
                harness.advance_processing_time(content)
                oracle.set_clock(oracle.clock + content)
            else:
                records = [(key, number + more, time) for more, (key, time) in enumerate(content, 1)]
                number += len(content)
                for run in (records[: len(records) // 2], records[len(records) // 2 :]):
                    harness.push_all(run, [time for _, _, time in run])
                for record in records:
                    oracle.add(*record)
            # Past timers fire at the next reading of the clock.
            harness.set_processing_time(oracle.clock)
            oracle.set_clock(oracle.clock)
            outputs = [row if len(row) > 3 else (*row, None) for row in harness.get_output()]
            assert plain(outputs, how, kind) == plain(oracle.results(), how, kind)
            side = [value for _, value, _ in harness.get_side_output(LATE)]
            assert side == oracle.late[late:]
            late += len(side)
        harness.snapshot()
        assert harness.operator.context.counters[LATE_RECORDS_DROPPED] == 0
        if kind.ends:
            assert harness.num_event_time_timers() == harness.num_processing_time_timers() == 0
            assert harness.num_keyed_state_entries() == 0
    finally:
        harness.close()
