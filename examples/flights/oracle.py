"""The same result by brute force: all flights at once, sorted, no stream, no state, no timers."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from job import SILENT_AFTER, Departure, Event, departure_of, in_order, propagated, silent, to_ms

from pillarbox import Row


def expected(rows: list[dict[str, Any]]) -> list[Event]:
    """Give the events of all flights, and of the time after them, sorted."""
    aircraft: dict[str, list[Departure]] = defaultdict(list)
    for row in rows:
        if row["tail"] is not None:
            at = round(row["departed"].timestamp() * 1000)
            aircraft[row["tail"]].append(departure_of(Row.of(**row), at))
    events = []
    for tail, unsorted in aircraft.items():
        departures = in_order(unsorted)
        for before, after in pairwise(departures):
            event = propagated(tail, before, after)
            if event is not None:
                events.append(event)
            if after.at > before.at + to_ms(SILENT_AFTER):
                events.append(silent(tail, before))
        events.append(silent(tail, departures[-1]))
    return sort(events)


def sort(events: list[Any]) -> list[Event]:
    """Give events, as they came in whatever form and order, in one that can be compared."""
    return sorted((Event(*event) for event in events), key=lambda e: (e.tail, e.at, e.kind, e.last_flight, str(e)))
