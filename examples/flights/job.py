"""The program: follow every aircraft by its tail number.

- *Propagated delay*: an aircraft lands late, and its next departure from New York is late as well. The data has only
  departures from New York, so between the two the aircraft has also flown back, unseen: "next" is the aircraft's next
  departure from any of the three airports within a day.
- *Silent aircraft*: one that does not leave New York again within two weeks.

Flights of an aircraft reach its subtask in any order: several files are read at once. So a flight waits in the state
until the watermark has passed its departure, then flights are handled in the order in which they left.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from pillarbox import (
    DataStream,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
    WatermarkStrategy,
)

LATE = 15  # minutes
SAME_DAY = timedelta(hours=24)
SILENT_AFTER = timedelta(days=14)


class Event(NamedTuple):
    """What the program finds out."""

    kind: str  # propagated, or silent
    tail: str
    carrier: str
    at: datetime  # the late departure; the end of the two weeks
    last_flight: str
    next_flight: str | None
    arr_delay: int | None
    dep_delay: int | None
    minutes: int | None  # of the departure's delay, those that the arrival explains


class Departure(NamedTuple):
    """A flight as the state keeps it; sorts by departure, then by all that tells two flights apart."""

    at: int  # epoch ms
    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None

    @property
    def label(self) -> str:
        return f"{self.carrier}{self.flight} {self.origin}-{self.dest}"


def departure_of(row: Any, at: int) -> Departure:
    """Give a flight's departure."""
    return Departure(at, row.carrier, row.flight, row.origin, row.dest, row.dep_delay, row.arr_delay)


def in_order(departures: list[Departure]) -> list[Departure]:
    """Sort departures; delays may be missing, so they do not take part."""
    return sorted(departures, key=lambda departure: departure[:5])


def propagated(tail: str, before: Departure | None, after: Departure) -> Event | None:
    """Give the delay that an aircraft took from one departure to the next, if it did."""
    if before is None or before.arr_delay is None or after.dep_delay is None:
        return None
    if before.arr_delay <= LATE or after.dep_delay <= LATE or after.at - before.at > to_ms(SAME_DAY):
        return None
    minutes = min(before.arr_delay, after.dep_delay)
    return Event(
        "propagated", tail, after.carrier, to_datetime(after.at), before.label, after.label,
        before.arr_delay, after.dep_delay, minutes,
    )  # fmt: skip


def silent(tail: str, last: Departure) -> Event:
    """Give the report of an aircraft that has not been seen for two weeks."""
    at = to_datetime(last.at + to_ms(SILENT_AFTER))
    return Event("silent", tail, last.carrier, at, last.label, None, None, None, None)


def to_ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def to_datetime(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


class FollowAircraft(KeyedProcessFunction):
    """One aircraft: the flights that wait for the watermark, and its last departure."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> None:
        at = ctx.timestamp()
        assert at is not None
        self.waiting.put(at, [*(self.waiting.get(at) or []), departure_of(row, at)])
        ctx.timer_service().register_event_time_timer(at)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Event]:
        tail = ctx.get_current_key()
        departures = self.waiting.get(timestamp)
        if departures is not None:
            self.waiting.remove(timestamp)
            for departure in in_order(departures):
                event = propagated(tail, self.last.value(), departure)
                if event is not None:
                    yield event
                self.seen(departure, ctx)
        last = self.last.value()
        if last is not None and timestamp == last.at + to_ms(SILENT_AFTER):
            yield silent(tail, last)

    def seen(self, departure: Departure, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        """Move the timer that waits for the aircraft's return."""
        last = self.last.value()
        if last is not None:
            old = last.at + to_ms(SILENT_AFTER)
            # A flight that leaves at that very moment waits for the same timer: timers of a key are deduplicated.
            if not self.waiting.contains(old):
                ctx.timer_service().delete_event_time_timer(old)
        self.last.update(departure)
        ctx.timer_service().register_event_time_timer(departure.at + to_ms(SILENT_AFTER))


def build(flights: DataStream) -> DataStream:
    """Give the events of a stream of flights."""
    by_departure = WatermarkStrategy.for_bounded_out_of_orderness("1 hour").with_timestamp_assigner("departed")
    return (
        flights.assign_timestamps_and_watermarks(by_departure)
        .filter(lambda row: row.kind == "flight" and row.tail is not None)
        .name("flights with a tail number")
        .key_by("tail")
        .process(FollowAircraft(), output_type=Event)
        .name("follow aircraft")
        .uid("follow-aircraft")
    )
