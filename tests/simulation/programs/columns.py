"""Programs with columnar aggregates, in windows of all kinds."""

from __future__ import annotations

from pillarbox import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    Row,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    last_,
    min_,
    sum_,
)
from tests.simulation import oracles
from tests.simulation.programs.program import LAST, SimulatedProgram, keyed_events, of_events

EVENT = Types.ROW_NAMED(["key", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])


def as_row(event):
    return Row.of(key=event[0], at=event[1], n=event[2])


def totals(assigner, *, bound=100, lateness=0):
    def build(env, events):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("at")
        timed = events.map(as_row, EVENT).assign_timestamps_and_watermarks(strategy)
        windows = timed.key_by("key").window(assigner).allowed_lateness(lateness)
        return windows.aggregate(
            count=count_(),
            total=sum_("n"),
            mean=avg_("n"),
            least=min_("n"),
            first=first_("n"),
            last=last_("n"),
            different=approx_count_distinct_("at"),
        )

    return build


def to_the_end(build, **options):
    return of_events(build, bounded=True, **options)


PROGRAMS: dict[str, SimulatedProgram] = {
    "tumbling-columns": to_the_end(
        totals(TumblingEventTimeWindows.of(150, 20)),
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.aligned(150, 150, 20), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "sliding-columns": to_the_end(
        totals(SlidingEventTimeWindows.of(300, 70)),
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.aligned(300, 70), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "cumulating-columns": to_the_end(
        totals(CumulativeEventTimeWindows.of(600, 150)),
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.cumulated(600, 150), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "sessions-of-columns": to_the_end(
        totals(EventTimeSessionWindows.with_gap(60)),
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 60), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "late-columns": to_the_end(
        totals(SlidingEventTimeWindows.of(200, 100), bound=0, lateness=80),
        batch_oracle=oracles.windowed(oracles.aligned(200, 100), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "late-sessions-of-columns": to_the_end(
        totals(EventTimeSessionWindows.with_gap(40), bound=0, lateness=30),
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 40), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
    "unbounded-columns": SimulatedProgram(
        totals(EventTimeSessionWindows.with_gap(60)),
        lambda rng: {"events": keyed_events(rng)},
        last=LAST,
        cut_free=True,
        batch_oracle=oracles.windowed(oracles.sessions(lambda value: 60), oracles.aggregates),
        batch_view=oracles.plain_rows,
    ),
}
