"""An HTTP service with data about weather and aircraft, which is slow and sometimes fails. It runs in its own process.

python -m examples.enrichment.service --port 8080 --latency 20 --errors 0.02 --hangs 0.001

GET /weather/EWR/2013-01-01T10 {"temp": 39.02, "wind_speed": ...}, or 404 GET /aircraft/N14228 {"manufacturer":
"BOEING", "model": ...}, or 404 GET /square/12 {"number": 12, "square": 144}, for programs without flights GET /stats
the counts of requests and outcomes POST /control {"errors": 0.5} changes fields of `Troubles`

Faults are reproducible: the seed alone determines, for example, the outcome of the third request for EWR's weather at
ten. From Python, ``with running_service(errors=0.02) as service:`` runs the service during the block.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

from aiohttp import web

from examples.service_process import RunningService, run_service, running

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Troubles:
    """The service's faults.

    Attributes:
        latency: median time of an answer (ms). A few answers take three times as long.
        errors: share of the requests that are answered with HTTP 500.
        hangs: share of the requests that are never answered.
        twice: share of the requests that are answered twice, so that the connection contains an answer without a
            request.
        die_after: number of requests until an outage begins. During the outage, connections are closed without an
            answer.
        dead_requests: length of the outage, as a number of requests.
        dead_seconds: length of the outage in seconds, instead of ``dead_requests``.
        seed: determines which requests fail.
    """

    latency: float = 0.0
    errors: float = 0.0
    hangs: float = 0.0
    twice: float = 0.0
    die_after: int = 0
    dead_requests: int = 0
    dead_seconds: float = 0.0
    seed: int = 1

    def update(self, changes: dict[str, Any]) -> None:
        """Change some fields."""
        for name, value in changes.items():
            if name not in (field.name for field in fields(self)):
                raise web.HTTPBadRequest(text=f"no trouble is called {name!r}")
            setattr(self, name, value)


class Service:
    """The service: requests, faults and statistics."""

    def __init__(self, troubles: Troubles) -> None:
        self.troubles = troubles
        self.dead_until = -math.inf
        self.weather: dict[str, Any] | None = None
        self.aircraft: dict[str, Any] | None = None
        self.asked: Counter[str] = Counter()  # by path
        self.outcomes: Counter[str] = Counter()
        self.per_second: Counter[int] = Counter()
        self.clients: set[Any] = set()
        self.in_flight = self.in_flight_max = 0

    def app(self) -> web.Application:
        """Return the web application. All routes except ``/stats`` and ``/control`` have faults."""
        app = web.Application(middlewares=[self.with_troubles])
        app.add_routes(
            [
                web.get("/weather/{place:.+}", self.get_weather),
                web.get("/aircraft/{tail}", self.get_aircraft),
                web.get("/square/{number}", self.get_square),
                web.get("/stats", self.get_stats),
                web.post("/control", self.control),
            ]
        )
        return app

    @web.middleware
    async def with_troubles(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request, and answer it or cause a fault."""
        if request.path in ("/stats", "/control"):
            return await handler(request)
        self.asked[request.path] += 1
        self.per_second[int(time.monotonic())] += 1
        assert request.transport is not None
        self.clients.add(request.transport.get_extra_info("peername"))
        if self.is_dead():
            self.outcomes["cut"] += 1
            request.transport.abort()
            return web.Response(status=503)  # nobody gets it
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self.answer(request, handler)
        finally:
            self.in_flight -= 1

    def is_dead(self) -> bool:
        """Return whether a request arrives during an outage. Counts the request."""
        troubles = self.troubles
        if troubles.dead_requests > 0 or troubles.dead_seconds > 0:
            if troubles.die_after > 0:
                troubles.die_after -= 1
                return False
            if troubles.dead_seconds > 0:
                self.dead_until = time.monotonic() + troubles.dead_seconds
                troubles.dead_seconds = 0.0
            else:
                troubles.dead_requests -= 1
                return True
        return time.monotonic() < self.dead_until

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request correctly, late, with an error, twice, or never."""
        troubles = self.troubles
        dice = random.Random(f"{troubles.seed} {request.path} {self.asked[request.path]}")
        fate = dice.random()
        if fate < troubles.hangs:
            self.outcomes["hung"] += 1
            await asyncio.Event().wait()  # until the client has had enough
        if troubles.latency > 0:
            await asyncio.sleep(troubles.latency / 1000 * dice.lognormvariate(0, 0.5))
        if fate < troubles.hangs + troubles.errors:
            self.outcomes["500"] += 1
            return web.Response(status=500, text="having a bad day")
        response = await handler(request)
        if troubles.hangs + troubles.errors <= fate < troubles.hangs + troubles.errors + troubles.twice:
            self.outcomes["twice"] += 1
            answer_once_more(request, response, dice.uniform(0, 0.01))
        self.outcomes[str(response.status)] += 1
        return response

    async def get_weather(self, request: web.Request) -> web.Response:
        """Return the weather at an airport and hour."""
        if self.weather is None:
            from examples.enrichment.data import weather

            self.weather = weather()
        return json_response(self.weather.get(request.match_info["place"]))

    async def get_aircraft(self, request: web.Request) -> web.Response:
        """Return data about an aircraft."""
        if self.aircraft is None:
            from examples.enrichment.data import aircraft

            self.aircraft = aircraft()
        return json_response(self.aircraft.get(request.match_info["tail"]))

    async def get_square(self, request: web.Request) -> web.Response:
        """Return a number's square."""
        number = int(request.match_info["number"])
        return web.json_response({"number": number, "square": number**2})

    async def get_stats(self, request: web.Request) -> web.Response:
        """Return the counts of requests and outcomes."""
        return web.json_response(
            {
                "requests": self.asked.total(),
                "different": len(self.asked),
                "outcomes": self.outcomes,
                "connections": len(self.clients),
                "in_flight": self.in_flight,
                "in_flight_max": self.in_flight_max,
                "per_second": list(self.per_second.values()),
            }
        )

    async def control(self, request: web.Request) -> web.Response:
        """Change the faults."""
        self.troubles.update(await request.json())
        return web.json_response(vars(self.troubles))


def json_response(answer: dict[str, Any] | None) -> web.Response:
    """Return an answer as JSON, or status 404 if it is None."""
    return web.json_response(answer) if answer is not None else web.json_response(None, status=404)


def answer_once_more(request: web.Request, response: web.StreamResponse, after: float) -> None:
    """Write an answer to its connection again after some seconds, perhaps during another request."""
    assert isinstance(response, web.Response) and isinstance(response.body, bytes)
    transport = request.transport
    head = (
        f"HTTP/1.1 {response.status} {response.reason}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n\r\n"
    )
    again = head.encode() + response.body

    def write() -> None:
        if transport is not None and not transport.is_closing():
            transport.write(again)

    asyncio.get_running_loop().call_later(after, write)


def running_service(port: int = 0, **troubles: float) -> AbstractContextManager[RunningService]:
    """Run the service in a separate process, which ends with the ``with`` block or with this process."""
    return running("examples.enrichment.service", port, **troubles)


if __name__ == "__main__":
    run_service(__doc__, Troubles, lambda troubles: Service(troubles).app())
