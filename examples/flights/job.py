"""The program: follow every aircraft by its tail number.

- ``propagated``: an aircraft lands more than 15 minutes late, and its next departure is more than 15 minutes late, too.
  The data has departures from New York only, so between the two the aircraft has come back, unseen. *Next departure* is
  therefore the next that it makes from any of New York's three airports, if the aircraft can have been back by then (it
  needs the time of the flight out for the flight in) and has not stood about (at most 12 hours after landing at the
  other end, which is departure plus time in the air: the data has no taxi times). Of the delay, the smaller of
  the two is taken to have been handed on.
- ``silent``: an aircraft has not left New York again two weeks after it did.
- ``untracked``: a flight without tail number; nobody can follow that.
- ``overdue``: a flight that came when the watermark had already passed it. There are none, unless a source is
  less punctual than it promised; they are reported, not lost.

Flights of one aircraft reach its subtask in any order: several files are read at once. So a flight waits in the state
until the watermark has passed its departure, then a timer handles flights in the order in which they left. What comes
out depends neither on the parallelism nor on how the flights were cut into files and micro-batches.
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
    """A finding of the program."""

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
    """A flight as the state keeps it."""

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
        """The flight's name for people."""
        return f"{self.carrier}{self.number} {self.origin}-{self.dest}"


class LastSeen(NamedTuple):
    """An aircraft's last departure."""

    flight: Flight
    chain: int  # late departures in a row that the aircraft has handed on so far
    cancelled: int  # cancelled departures since

    @property
    def missed_at(self) -> int:
        """When it will have been away for too long."""
        return self.flight.departed + SILENT_AFTER


def flight_of(row: Any, departed: int) -> Flight:
    """Return the flight in a row."""
    return Flight(
        departed, row.carrier, row.flight, row.origin, row.dest, row.dep_delay, row.arr_delay, row.air_time
    )  # fmt: skip


def all_fields(flight: Flight) -> list[tuple[bool, Any]]:
    """Sort key: whatever leaves at the same minute still has one order. None can be compared with None only."""
    return [(field is None, field) for field in flight]


def instant(ms: int) -> datetime:
    """Return event time as a datetime."""
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


UNTRACKED = OutputTag("untracked")
OVERDUE = OutputTag("overdue")


class ByTailNumber(ProcessFunction):
    """Let flights with a tail number through, the others go to a side output."""

    def process_element(self, row: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        """Choose the way of a flight."""
        if row.tail is None:
            departed = ctx.timestamp()
            assert departed is not None
            yield UNTRACKED, Event("untracked", instant(departed), None, row.carrier, flight_of(row, departed).label)
        else:
            yield row


class FollowAircraft(KeyedProcessFunction):
    """One aircraft: the flights that wait for the watermark, and its last departure."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the states."""
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))  # event time -> flights
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Let a flight wait until the watermark has passed it."""
        departed = ctx.timestamp()
        assert departed is not None
        flight = flight_of(row, departed)
        if departed <= ctx.timer_service().current_watermark():
            yield OVERDUE, Event("overdue", instant(departed), row.tail, flight.carrier, flight.label)
            return
        self.waiting.put(departed, [*(self.waiting.get(departed) or ()), flight])
        ctx.timer_service().register_event_time_timer(departed)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Event]:
        """Follow the flights of this moment, then see whether it is the one at which the aircraft is missed."""
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
    """Return the minutes of delay that an aircraft took from a flight to its next, or None."""
    if before.arr_delay is None or before.air_time is None or after.dep_delay is None:
        return None  # diverted: nobody knows when it landed
    landed = before.departed + before.air_time * MINUTE
    away = after.departed - landed
    if not before.air_time * MINUTE <= away <= BACK_WITHIN * MINUTE:
        return None
    late = before.arr_delay > LATE and after.dep_delay > LATE
    return min(before.arr_delay, after.dep_delay) if late else None


def build(rows: DataStream, follow: FollowAircraft | None = None) -> DataStream:
    """Return the events of a stream of flights (and heartbeats).

    Args:
        follow: another version of what follows an aircraft.
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
