"""Functions that look up weather and aircraft. Each has an ``async def __call__``, and a connection pool while open.

``open`` and ``close`` run in the thread of the requests' event loop, because an aiohttp session belongs to its loop.
They run once in a task's life, so connections stay open from micro-batch to micro-batch.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import aiohttp

from examples.enrichment.data import hour_of
from pillarbox import Function, RuntimeContext


class Weather(NamedTuple):
    """The weather at an airport in an hour. A value that was not recorded is None."""

    temp: float | None = None  # degrees Fahrenheit
    wind_speed: float | None = None  # miles per hour
    precip: float | None = None  # inches in the hour
    visib: float | None = None  # miles, ten at most


class Aircraft(NamedTuple):
    """Data about an aircraft. A value that the service does not know is None."""

    manufacturer: str | None = None
    model: str | None = None
    built: int | None = None
    seats: int | None = None


class HttpLookup(Function):
    """Base class of functions that request data from an HTTP service.

    Args:
        service: the address of the service.
        patience: timeout of a request (s), after which it is sent again.
    """

    def __init__(self, service: str, patience: float = 2.0) -> None:
        self.service = service
        self.patience = patience

    async def open(self, runtime_context: RuntimeContext) -> None:
        """Create the connection pool."""
        self.session = aiohttp.ClientSession(self.service, timeout=aiohttp.ClientTimeout(total=self.patience))

    async def close(self) -> None:
        """Close the connection pool."""
        await self.session.close()

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON answer to a request, or an empty dict for status 404. Other error statuses raise."""
        async with self.session.get(path) as response:
            if response.status == 404:
                return {}
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


class WeatherAt(HttpLookup):
    """Looks up the weather at an airport in an hour."""

    async def __call__(self, origin: str, hour: datetime) -> Weather:
        """Request the weather."""
        return Weather(**await self.get(f"/weather/{origin}/{hour_of(hour)}"))


class AircraftOf(HttpLookup):
    """Looks up the aircraft with a tail number."""

    async def __call__(self, tail: str | None) -> Aircraft:
        """Request the aircraft. Without a tail number, sends no request."""
        return Aircraft(**await self.get(f"/aircraft/{tail}")) if tail is not None else Aircraft()
