"""The lookups: each is an object with ``async def __call__``, and a connection pool while it is open.

``open`` and ``close`` run on the thread of the event loop that runs the requests: an aiohttp session belongs to its
loop. They run once for as long as a task lives in its worker, so connections outlive micro-batches.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import aiohttp

from examples.enrichment.data import hour_of
from pillarbox import Function, RuntimeContext


class Weather(NamedTuple):
    """The weather at an airport in an hour; nothing where nothing was recorded."""

    temp: float | None = None  # degrees Fahrenheit
    wind_speed: float | None = None  # miles per hour
    precip: float | None = None  # inches in the hour
    visib: float | None = None  # miles, ten at most


class Aircraft(NamedTuple):
    """Facts about an aircraft; nothing where the service does not know it."""

    manufacturer: str | None = None
    model: str | None = None
    built: int | None = None
    seats: int | None = None


class HttpLookup(Function):
    """Asks an HTTP service.

    Args:
        service: its address.
        patience: seconds for one request; without an answer by then it is asked again.
    """

    def __init__(self, service: str, patience: float = 2.0) -> None:
        self.service = service
        self.patience = patience

    async def open(self, runtime_context: RuntimeContext) -> None:
        """Make the pool of connections."""
        self.session = aiohttp.ClientSession(self.service, timeout=aiohttp.ClientTimeout(total=self.patience))

    async def close(self) -> None:
        """Close them."""
        await self.session.close()

    async def get(self, path: str) -> dict[str, Any]:
        """Return the answer to a request. That there is none (404) is an answer; other errors raise."""
        async with self.session.get(path) as response:
            if response.status == 404:
                return {}
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


class WeatherAt(HttpLookup):
    """The weather at an airport in an hour."""

    async def __call__(self, origin: str, hour: datetime) -> Weather:
        """Look it up."""
        return Weather(**await self.get(f"/weather/{origin}/{hour_of(hour)}"))


class AircraftOf(HttpLookup):
    """The facts about the aircraft with a tail number."""

    async def __call__(self, tail: str | None) -> Aircraft:
        """Look them up; for a flight without tail number nobody is asked."""
        return Aircraft(**await self.get(f"/aircraft/{tail}")) if tail is not None else Aircraft()
