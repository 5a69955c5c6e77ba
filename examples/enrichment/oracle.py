"""The results of the enrichment demo, computed by joining tables, without the service, a stream or pillarbox.

The oracle has its own code for reading the tables, so it checks the service, too.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from examples.enrichment.data import folder

COLUMNS = pa.schema(
    [
        ("departed", pa.timestamp("us", tz="UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tail", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int32()),
        ("temp", pa.float64()),
        ("wind_speed", pa.float64()),
        ("precip", pa.float64()),
        ("visib", pa.float64()),
        ("manufacturer", pa.string()),
        ("model", pa.string()),
        ("built", pa.int32()),
        ("seats", pa.int32()),
    ]
)


def expected(files: Path) -> dict[str, pa.Table]:
    """Return the expected rows for each file of flights, in order."""
    weather = pd.read_csv(folder() / "weather.csv", float_precision="round_trip")
    weather["hour"] = pd.to_datetime(weather.pop("time_hour"), utc=True)
    planes = pd.read_csv(folder() / "planes.csv").rename(columns={"tailnum": "tail", "year": "built"})
    tables = {}
    for path in sorted(files.glob("*.parquet")):
        flights = pd.read_parquet(path)
        flights = flights[flights["kind"] == "flight"]
        flights["hour"] = flights["departed"].dt.floor("h")
        joined = flights.merge(weather, "left", ["origin", "hour"]).merge(planes, "left", "tail")
        if len(joined):
            tables[path.name] = pa.Table.from_pandas(joined[COLUMNS.names], COLUMNS, preserve_index=False)
    return tables
