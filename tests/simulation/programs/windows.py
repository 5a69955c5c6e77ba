"""Programs with windows of all kinds, triggers, allowed lateness and merging sessions."""

from __future__ import annotations

from pillarbox import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from tests.simulation import oracles
from tests.simulation.programs.program import LAST, SimulatedProgram, of_events
from tests.support.programs import bounded, first, monotonous

LATE = OutputTag("late")


class Contents(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), sorted(value[2] for value in elements)


class Total(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += 1
        accumulator[1] += value[2]
        return accumulator

    def get_result(self, accumulator):
        return tuple(accumulator)

    def merge(self, accumulator, other):
        return [accumulator[0] + other[0], accumulator[1] + other[1]]


class Named(ProcessWindowFunction):
    def process(self, key, context, elements):
        (total,) = elements
        yield key, tuple(context.window()), total


class Firings(Contents):
    """Numbers the firings of a window, in window state."""

    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        fired.update((fired.value() or 0) + 1)
        for result in super().process(key, context, elements):
            yield *result, fired.value()

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


def tumbling(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    return timed.key_by(first).window(TumblingEventTimeWindows.of(150, 20)).process(Contents())


def sliding(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    return timed.key_by(first).window(SlidingEventTimeWindows.of(300, 100)).aggregate(Total(), Named())


def merging_sessions(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    return timed.key_by(first).window(EventTimeSessionWindows.with_gap(60)).aggregate(Total(), Named())


def late_sessions(env, events):
    timed = events.assign_timestamps_and_watermarks(monotonous())
    windows = timed.key_by(first).window(EventTimeSessionWindows.with_gap(40)).allowed_lateness(30)
    sessions = windows.side_output_late_data(LATE).process(Contents())
    late = sessions.get_side_output(LATE).map(lambda value: ("late", value))
    return sessions.union(late)


def late_panes(env, events):
    timed = events.assign_timestamps_and_watermarks(monotonous())
    windows = timed.key_by(first).window(SlidingEventTimeWindows.of(250, 60, 20)).allowed_lateness(90)
    sums = windows.side_output_late_data(LATE).aggregate(Total(), Named())
    late = sums.get_side_output(LATE).map(lambda value: ("late", value))
    return sums.union(late)


def cumulating(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    windows = timed.key_by(first).window(CumulativeEventTimeWindows.of(400, 50))
    return windows.reduce(lambda window, other: (window[0], max(window[1], other[1]), window[2] + other[2]))


def late_folded_sessions(env, events):
    timed = events.assign_timestamps_and_watermarks(monotonous())
    windows = timed.key_by(first).window(EventTimeSessionWindows.with_dynamic_gap(lambda event: 20 + event[1] % 50))
    return windows.allowed_lateness(60).aggregate(Total(), Named())


def fired_again(env, events):
    timed = events.assign_timestamps_and_watermarks(monotonous())
    windows = timed.key_by(first).window(TumblingEventTimeWindows.of(100)).allowed_lateness(200)
    return windows.process(Firings())


class Counted(Named):
    """Numbers the firings of a folded window, in window state."""

    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        fired.update((fired.value() or 0) + 1)
        for result in super().process(key, context, elements):
            yield *result, fired.value()

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


def late_totals(env, events):
    timed = events.assign_timestamps_and_watermarks(monotonous())
    windows = timed.key_by(first).window(TumblingEventTimeWindows.of(120, 20)).allowed_lateness(90)
    sums = windows.side_output_late_data(LATE).aggregate(Total(), Counted())
    return sums.union(sums.get_side_output(LATE).map(lambda value: ("late", value)))


def counted(env, events):
    return events.key_by(first).count_window(3, 2).process(Contents())


def counted_again(env, events):
    windows = events.key_by(first).window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(4)))
    return windows.process(Contents())


def early_results(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    windows = timed.key_by(first).window(EventTimeSessionWindows.with_gap(200))
    return windows.trigger(ContinuousEventTimeTrigger.of(70)).process(Contents())


def windows_of_windows(env, events):
    timed = events.assign_timestamps_and_watermarks(bounded(100))
    totals = timed.key_by(first).window(TumblingEventTimeWindows.of(50)).aggregate(Total(), Named())
    most = totals.window_all(TumblingEventTimeWindows.of(200))
    return most.reduce(lambda window, other: max(window, other, key=lambda total: (total[2], total[0])))


def sessions_by_the_clock(env, events):
    windows = events.key_by(first).window(ProcessingTimeSessionWindows.with_gap(50_000))
    return windows.process(Contents()).map(lambda session: (session[0], session[2]))


def to_the_end(build, **options):
    return of_events(build, bounded=True, **options)


PROGRAMS: dict[str, SimulatedProgram] = {
    "tumbling-windows": to_the_end(
        tumbling, cut_free=True, batch_oracle=oracles.windowed(oracles.aligned(150, 150, 20), oracles.contents)
    ),
    "sliding-windows": to_the_end(
        sliding, cut_free=True, batch_oracle=oracles.windowed(oracles.aligned(300, 100), oracles.totals)
    ),
    "merging-sessions": to_the_end(
        merging_sessions,
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 60), oracles.totals),
    ),
    # Each late record fires its window, so that a key's order shows.
    "late-sessions": to_the_end(
        late_sessions,
        together={"events": first},
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 40), oracles.contents),
    ),
    "late-panes": to_the_end(
        late_panes,
        together={"events": first},
        batch_oracle=oracles.windowed(oracles.aligned(250, 60, 20), oracles.totals),
    ),
    "cumulating-windows": to_the_end(
        cumulating, cut_free=True, batch_oracle=oracles.windowed(oracles.cumulated(400, 50), oracles.latest_and_sum)
    ),
    "late-folded-sessions": to_the_end(
        late_folded_sessions,
        together={"events": first},
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 20 + value[1] % 50), oracles.totals),
    ),
    "firing-again": to_the_end(
        fired_again,
        together={"events": first},
        batch_oracle=oracles.windowed(oracles.aligned(100, 100), oracles.fired_once(oracles.contents)),
    ),
    "late-totals": to_the_end(
        late_totals,
        together={"events": first},
        batch_oracle=oracles.windowed(oracles.aligned(120, 120, 20), oracles.fired_once(oracles.totals)),
    ),
    "count-windows": to_the_end(counted, together={"events": first}, batch_oracle="its windows are of arrival"),
    "count-triggers": to_the_end(counted_again, together={"events": first}, batch_oracle="its windows are of arrival"),
    # Its first firing is relative to the first record, so their order matters.
    "early-results": to_the_end(early_results, together={"events": first}, batch_oracle="its windows are of arrival"),
    "stacked-windows": to_the_end(windows_of_windows, cut_free=True, batch_oracle=oracles.stacked),
    "unbounded-windows": of_events(
        tumbling,
        last=LAST,
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.aligned(150, 150, 20), oracles.contents),
    ),
    "sessions-by-the-clock": of_events(
        sessions_by_the_clock,
        most=20,
        tail=(100_000, 100_000),
        timed=True,
        batch_oracle=oracles.each_key(lambda key, group: [(key, sorted(map(oracles.third, group)))]),
    ),
}
