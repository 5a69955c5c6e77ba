"""Adds to each flight the weather at its airport in the hour of its departure, and data about its aircraft.

The program looks up both over HTTP, with up to a hundred concurrent requests in each task. Flights stay in order.
Failed requests are retried after growing pauses, and answers are cached.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import pillarbox.functions as PF
from examples.enrichment.lookups import AircraftOf, WeatherAt
from pillarbox import AsyncCache

WEATHER = "temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"
AIRCRAFT = "manufacturer STRING, model STRING, built INT, seats INT"

# Eight retries, 0.1 s after the first failure, then twice as long each time: the service may be away for 25 s.
PATIENTLY: dict[str, Any] = {"capacity": 100, "timeout": "1 minute", "retry": 8}


def enrich(flights: DataFrame, service: str) -> DataFrame:
    """Return the flights with eight additional columns."""
    flights = flights.withColumn("hour", F.date_trunc("hour", "departed"))
    with_weather = PF.async_map(
        flights,
        WeatherAt(service),
        WEATHER,
        columns=["origin", "hour"],
        cache=AsyncCache(max_size=1_000, ttl="1 hour"),
        **PATIENTLY,
    )
    return PF.async_map(
        with_weather.drop("hour"),
        AircraftOf(service),
        AIRCRAFT,
        columns=["tail"],
        cache=AsyncCache(max_size=10_000, ttl="1 day"),
        **PATIENTLY,
    )
