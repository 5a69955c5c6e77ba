"""The results of ``job.py``, computed from all flights at once, without streams, state, timers or pillarbox.

It is written from the description in ``job.py`` and shares no code with it, so the two check each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

TWO_WEEKS = timedelta(days=14)
Outcome = tuple[Any, ...]


def expected(rows: list[dict[str, Any]]) -> list[Outcome]:
    """Return the events of all flights and of the two weeks after them, in :func:`canonical` order."""
    fleet: dict[str, list[dict[str, Any]]] = defaultdict(list)
    events: list[Outcome] = []
    for row in rows:
        if row["tail"] is None:
            events.append(("untracked", row["departed"], None, row["carrier"], _label(row), *[None] * 6))
        else:
            fleet[row["tail"]].append(row)
    for tail, flights in fleet.items():
        events += _of_aircraft(tail, flights)
    return canonical(events)


def milestones(events: list[Outcome], since: datetime, every: int) -> list[Outcome]:
    """Return an event each time an aircraft's handed-on minutes since ``since`` pass a multiple of ``every``."""
    outcomes: list[Outcome] = []
    total: defaultdict[str, int] = defaultdict(int)
    for kind, at, tail, carrier, _, flight, _, _, minutes, *_ in sorted(events, key=lambda event: event[1]):
        if kind == "propagated" and at >= since:
            before = total[tail]
            total[tail] += minutes
            if total[tail] // every > before // every:
                outcomes.append(("milestone", at, tail, carrier, flight, None, None, None, total[tail], None, None))
    return outcomes


def canonical(events: list[Any]) -> list[Outcome]:
    """Return events in an order that does not depend on the order of arrival, so that they can be compared."""
    return sorted(map(tuple, events), key=lambda event: [(field is None, field) for field in event])


def _of_aircraft(tail: str, rows: list[dict[str, Any]]) -> Iterator[Outcome]:
    order = ("departed", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay", "air_time")
    rows = sorted(rows, key=lambda row: [(row[name] is None, row[name]) for name in order])
    flown = [index for index, row in enumerate(rows) if row["dep_delay"] is not None]
    chain = 0
    for this, following in zip(flown, [*flown[1:], None]):
        row, missed_at = rows[this], rows[this]["departed"] + TWO_WEEKS
        until = len(rows) if following is None else following
        if following is None or rows[following]["departed"] > missed_at:
            # Cancelled flights at the very moment count: they are handled before the aircraft is missed.
            cancelled = sum(other["departed"] <= missed_at for other in rows[this + 1 : until])
            yield "silent", missed_at, tail, row["carrier"], _label(row), *[None] * 5, cancelled
        if following is None:
            return
        after = rows[following]
        if not _made_late(row, after):
            chain = 0
            continue
        chain += 1
        yield (
            "propagated", after["departed"], tail, after["carrier"], _label(row), _label(after),
            row["arr_delay"], after["dep_delay"], min(row["arr_delay"], after["dep_delay"]),
            chain, following - this - 1,
        )  # fmt: skip


def _made_late(row: dict[str, Any], after: dict[str, Any]) -> bool:
    if row["arr_delay"] is None or row["arr_delay"] <= 15 or after["dep_delay"] <= 15:
        return False
    landed: datetime = row["departed"] + timedelta(minutes=row["air_time"])
    back = landed + timedelta(minutes=row["air_time"])
    return bool(back <= after["departed"] <= landed + timedelta(hours=12))


def _label(row: dict[str, Any]) -> str:
    return f"{row['carrier']}{row['flight']} {row['origin']}-{row['dest']}"
