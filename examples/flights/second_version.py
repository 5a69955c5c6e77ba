"""A later version of the flights program, which also emits an event when an aircraft has handed on hours of delay.

``milestone``: the minutes that an aircraft has handed on since a given day have passed a multiple of ten hours. This
needs a new state. Otherwise, the program is unchanged, so it resumes from the checkpoint of the first version. For
aircraft that the first version followed, the new state is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from examples.flights.job import Event, Flight, FollowAircraft, build
from pillarbox import DataStream, KeyedProcessFunction, RuntimeContext, Types, ValueStateDescriptor

__all__ = ["EVERY", "build_second"]

EVERY = 600  # minutes


class FollowAndCount(FollowAircraft):
    """Follows an aircraft, and counts the minutes of delay that it hands on.

    Args:
        since: the day on which counting begins.
        every: the minutes between two milestones.
    """

    def __init__(self, since: datetime, every: int) -> None:
        self.since = since
        self.every = every

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the first version's states and the new state."""
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
    """Return a stream of events, including milestones, for a stream of flights."""
    return build(rows, FollowAndCount(since, every))
