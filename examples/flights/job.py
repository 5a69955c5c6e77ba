"""The program: follow each aircraft by its tail number, and emit events.

- ``propagated``: an aircraft lands more than 15 minutes late, and its next departure is more than 15 minutes late, too.
  The delay that was handed on is the smaller of both delays.
- ``silent``: an aircraft has not left New York again within two weeks of a departure.
- ``untracked``: a flight without a tail number.
- ``overdue``: a flight that arrives when the watermark has already passed its departure. There are no such flights,
  unless a source exceeds its declared delay.

The data contains only departures from New York, so an aircraft's return flight is missing. Its *next departure* is
therefore its next departure from any of New York's three airports, at least the time in the air after landing (for the
return flight), and at most 12 hours after it. The landing is the departure plus the time in the air, because the data
has no taxi times.

Several files are read at once, so an aircraft's flights arrive in any order. A flight therefore waits in state until
the watermark has passed its departure. Then a timer handles the flights in the order of their departures. The results
depend neither on the parallelism, nor on how flights are divided into files and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from pillarbox import (
    DataStream,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    ValueStateDescriptor,
    WatermarkStrategy,
)

LATE = 15  # minutes
BACK_WITHIN = 12 * 60  # minutes
MINUTE = 60_000  # event time is in milliseconds
SILENT_AFTER = 14 * 24 * 60 * MINUTE


class Event(NamedTuple):
    """An event that the program emits."""

    kind: str
    at: datetime  # the late departure; the end of the two weeks; of other kinds, the flight's departure
    tail: str | None
    carrier: str
    flight: str  # the flight that landed late, or after which the aircraft was not seen
    next_flight: str | None = None
    arr_delay: int | None = None
    dep_delay: int | None = None  # of the next flight
    minutes: int | None = None  # handed on
    chain: int | None = None  # how many departures in a row were late in this way
    cancelled: int | None = None  # departures of the aircraft in between that were cancelled


class Flight(NamedTuple):
    """A flight in state."""

    departed: int
    carrier: str
    number: int
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None

    @property
    def label(self) -> str:
        """The flight's name for display."""
        return f"{self.carrier}{self.number} {self.origin}-{self.dest}"


class LastSeen(NamedTuple):
    """An aircraft's last departure."""

    flight: Flight
    chain: int  # late departures in a row that the aircraft has handed on so far
    cancelled: int  # cancelled departures since

    @property
    def missed_at(self) -> int:
        """The time at which the aircraft counts as silent."""
        return self.flight.departed + SILENT_AFTER


def flight_of(row: Any, departed: int) -> Flight:
    """Return a row's flight."""
    return Flight(
        departed, row.carrier, row.flight, row.origin, row.dest, row.dep_delay, row.arr_delay, row.air_time
    )  # fmt: skip


def all_fields(flight: Flight) -> list[tuple[bool, Any]]:
    """Return a sort key that gives flights with the same departure a fixed order, even if fields are None."""
    return [(field is None, field) for field in flight]


def instant(ms: int) -> datetime:
    """Return an event time (epoch ms) as a datetime."""
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


UNTRACKED = OutputTag("untracked")
OVERDUE = OutputTag("overdue")


class ByTailNumber(ProcessFunction):
    """Forwards flights with a tail number. Emits all other flights to a side output."""

    def process_element(self, row: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        """Forward a flight, or emit it to the side output."""
        if row.tail is None:
            departed = ctx.timestamp()
            assert departed is not None
            yield UNTRACKED, Event("untracked", instant(departed), None, row.carrier, flight_of(row, departed).label)
        else:
            yield row


class FollowAircraft(KeyedProcessFunction):
    """Follows one aircraft. The state contains its last departure, and flights that wait for the watermark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the states."""
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))  # event time -> flights
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Store a flight until the watermark has passed it."""
        departed = ctx.timestamp()
        assert departed is not None
        flight = flight_of(row, departed)
        if departed <= ctx.timer_service().current_watermark():
            yield OVERDUE, Event("overdue", instant(departed), row.tail, flight.carrier, flight.label)
            return
        self.waiting.put(departed, [*(self.waiting.get(departed) or ()), flight])
        ctx.timer_service().register_event_time_timer(departed)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Event]:
        """Handle the flights with this departure time. Then emit an event if the aircraft is silent."""
        flights = self.waiting.get(timestamp)
        if flights is not None:
            self.waiting.remove(timestamp)
            for flight in sorted(flights, key=all_fields):
                yield from self.follow(flight, ctx)
        last: LastSeen | None = self.last.value()
        if last is not None and last.missed_at == timestamp:
            yield Event(
                "silent", instant(timestamp), ctx.get_current_key(), last.flight.carrier, last.flight.label,
                cancelled=last.cancelled,
            )  # fmt: skip

    def follow(self, flight: Flight, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Event]:
        """Handle the aircraft's next flight."""
        last: LastSeen | None = self.last.value()
        if flight.dep_delay is None:  # cancelled: the aircraft stays where it is
            if last is not None:
                self.last.update(last._replace(cancelled=last.cancelled + 1))
            return
        chain = 0
        if last is not None:
            minutes = handed_on(last.flight, flight)
            if minutes is not None:
                chain = last.chain + 1
                yield Event(
                    "propagated", instant(flight.departed), ctx.get_current_key(), flight.carrier,
                    last.flight.label, flight.label, last.flight.arr_delay, flight.dep_delay,
                    minutes, chain, last.cancelled,
                )  # fmt: skip
            # A key has one timer for each moment: this one may be what a flight is waiting for.
            if not self.waiting.contains(last.missed_at):
                ctx.timer_service().delete_event_time_timer(last.missed_at)
        seen = LastSeen(flight, chain, 0)
        self.last.update(seen)
        ctx.timer_service().register_event_time_timer(seen.missed_at)


def handed_on(before: Flight, after: Flight) -> int | None:
    """Return the minutes of delay that one flight handed on to the aircraft's next flight, or None."""
    if before.arr_delay is None or before.air_time is None or after.dep_delay is None:
        return None  # diverted: nobody knows when it landed
    landed = before.departed + before.air_time * MINUTE
    away = after.departed - landed
    if not before.air_time * MINUTE <= away <= BACK_WITHIN * MINUTE:
        return None
    late = before.arr_delay > LATE and after.dep_delay > LATE
    return min(before.arr_delay, after.dep_delay) if late else None


def build(rows: DataStream, follow: FollowAircraft | None = None) -> DataStream:
    """Return a stream of events for a stream of flights and heartbeats.

    Args:
        follow: the function that follows aircraft, in another version.
    """
    by_departure = WatermarkStrategy.for_bounded_out_of_orderness("1 hour").with_timestamp_assigner("departed")
    flights = (
        rows.assign_timestamps_and_watermarks(by_departure)
        .filter(lambda row: row.kind == "flight")  # heartbeats have done their work
        .name("flights only")
        .process(ByTailNumber())
        .name("by tail number")
    )
    events = flights.key_by("tail").process(follow or FollowAircraft(), output_type=Event).name("follow aircraft")
    events.uid("follow-aircraft")
    return events.union(flights.get_side_output(UNTRACKED), events.get_side_output(OVERDUE))
