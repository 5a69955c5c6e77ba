"""The results of ``job.py``, computed from all rows at once, without streams, windows, state or pillarbox.

It is written from the description in ``job.py`` and shares no code with it, so the two check each other.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import Any

HOUR, STEP = timedelta(hours=1), timedelta(minutes=5)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Row = tuple[Any, ...]


def expected(flights: list[dict[str, Any]], weather: list[dict[str, Any]], limits: list[dict[str, Any]]) -> list[Row]:
    """Return the hours of all airports, in order."""
    delays: defaultdict[tuple[str, datetime], list[int | None]] = defaultdict(list)
    for flight in flights:
        # It belongs to the twelve hours that end within one from its departure on.
        ends = flight["departed"] - (flight["departed"] - EPOCH) % STEP + STEP
        for number in range(12):
            delays[flight["origin"], ends + number * STEP].append(flight["dep_delay"])
    sky = {(row["origin"], row["observed"]): row for row in weather}
    limits_of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(limits, key=lambda row: row["since"], reverse=True):
        limits_of[row["origin"]].append(row)
    rows = []
    for (origin, ends), of_hour in sorted(delays.items()):
        last = ends - timedelta(milliseconds=1)
        observed = sky.get((origin, last - (last - EPOCH) % HOUR))
        if observed is None:
            continue
        left = [delay for delay in of_hour if delay is not None]
        delay = sum(left) / len(left) if left else None
        limit = next((row["minutes"] for row in limits_of[origin] if row["since"] <= last), None)
        alarm = delay is not None and limit is not None and delay > limit
        rows.append((origin, ends, len(left), delay, observed["wind"], observed["rain"], limit, alarm))
    return rows
