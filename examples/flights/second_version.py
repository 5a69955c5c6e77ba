"""The program as somebody wants it half a year later: it also tells which aircraft have handed on hours of delay.

``milestone``: the minutes that an aircraft has handed on, since a day on which counting begins, passed a multiple of
ten hours. For that there is a state more. All else is as it was, so it goes on with the checkpoint of the first
version: aircraft that have been followed for months have nothing in the new state yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from examples.flights.job import Event, Flight, FollowAircraft, build
from pillarbox import DataStream, KeyedProcessFunction, RuntimeContext, Types, ValueStateDescriptor

__all__ = ["EVERY", "build_second"]

EVERY = 600  # minutes


class FollowAndCount(FollowAircraft):
    """Follows an aircraft, and counts the minutes that it hands on.

    Args:
        since: the day on which counting begins.
        every: the minutes between two milestones.
    """

    def __init__(self, since: datetime, every: int) -> None:
        self.since = since
        self.every = every

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the states: those of the first version, and one more."""
        super().open(runtime_context)
        self.minutes = runtime_context.get_state(ValueStateDescriptor("minutes", Types.LONG()))

    def follow(self, flight: Flight, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Event]:
        """Handle the aircraft's next flight."""
        for event in super().follow(flight, ctx):
            yield event
            if event.kind == "propagated" and event.at >= self.since:
                before = self.minutes.value() or 0
                after = before + (event.minutes or 0)
                self.minutes.update(after)
                if after // self.every > before // self.every:
                    yield Event("milestone", event.at, event.tail, event.carrier, flight.label, minutes=after)


def build_second(rows: DataStream, since: datetime, every: int = EVERY) -> DataStream:
    """Return the events of a stream of flights, milestones among them."""
    return build(rows, FollowAndCount(since, every))
