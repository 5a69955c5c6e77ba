"""A simulated language model with a bill, a rate limit and outages: HTTP on loopback, in its own process.

python -m examples.agents.service [--port 8124] [--limit 120] [--latency 60]

    POST /chat      {"customer": ..., "messages": [[role, text], ...]}, header Idempotency-Key: an answer and its tokens
    GET  /orders/N  the state of an order, which is free
    GET  /stats     the bill, the outcomes, and the requests of each quarter of a second
    POST /control   {"refuse_after": 900}: fields of `Troubles`

The request alone determines the answer. Each key is billed once: its later requests receive the stored answer for free.
Requests beyond ``limit`` per second, and all requests during an overload, are refused with status 429 and
``Retry-After``. Messages with a card number are refused with status 422. During an outage, connections are closed
without an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from examples.agents.model import CARD, Messages, answer, order_state
from examples.service_process import RunningService, run_service, running

BUCKETS = 4  # a second


@dataclass
class Troubles:
    """The service's limits and simulated faults.

    Attributes:
        limit: requests per second that the service accepts.
        latency: median time of an answer (ms).
        refuse_after: number of requests until an overload begins; 0 for no overload.
        refuse_seconds: length of the overload.
        die_after: number of requests until an outage begins; 0 for no outage.
        dead_seconds: length of the outage.
    """

    limit: int = 120
    latency: float = 60.0
    refuse_after: int = 0
    refuse_seconds: float = 1.5
    die_after: int = 0
    dead_seconds: float = 2.0


class Service:
    """The simulated service: requests, faults and the bill. Used only in the event loop's thread."""

    def __init__(self, troubles: Troubles) -> None:
        self.troubles = troubles
        self.began = time.time()
        self.asked = 0
        self.refuses_until = self.dead_until = 0.0
        self.last_second: deque[float] = deque()
        self.outcomes: Counter[str] = Counter()
        self.by_time: dict[str, Counter[int]] = {name: Counter() for name in ("answered", "429", "dead")}
        # By idempotency key: the answer, and the digest of the request.
        self.billed: dict[str, tuple[dict[str, Any], str]] = {}
        self.saved = 0  # tokens of answers that were not billed again

    def app(self) -> web.Application:
        """Return the web application with its routes."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/chat", self.chat),
                web.get("/orders/{number}", self.order),
                web.get("/stats", self.stats),
                web.post("/control", self.control),
            ]
        )
        return app

    async def chat(self, request: web.Request) -> web.Response:
        """Answer a request, or refuse it."""
        body = await request.json()
        now = time.time()
        outcome = self.outcome(now)
        self.outcomes[outcome] += 1
        self.by_time[outcome][int((now - self.began) * BUCKETS)] += 1
        if outcome == "dead":
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=503)
        if outcome == "429":
            wait = max(self.refuses_until - now, 0.5)
            return web.Response(status=429, headers={"Retry-After": f"{wait:.1f}"}, text="too many requests")
        messages: Messages = [tuple(message) for message in body["messages"]]
        if CARD.search(messages[-1][1]):
            self.outcomes["422"] += 1
            return web.Response(status=422, text="the message contains a card number")
        text = json.dumps(body, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        await asyncio.sleep(self.troubles.latency / 1000 * (0.5 + int(digest[:4], 16) / 65_536))
        key = request.headers["Idempotency-Key"]
        if key in self.billed:
            stored, first = self.billed[key]
            if first != digest:
                return web.Response(status=409, text="the key belongs to another request")
            self.outcomes["repeated"] += 1
            self.saved += stored["tokens"]
            return web.json_response(stored)
        result = answer(messages)
        self.billed[key] = result, digest
        return web.json_response(result)

    def outcome(self, now: float) -> str:
        """Return the outcome of a request that arrives now: answered, 429 or dead."""
        troubles, recent = self.troubles, self.last_second
        self.asked += 1
        if troubles.die_after and self.asked > troubles.die_after:
            troubles.die_after, self.dead_until = 0, now + troubles.dead_seconds
        if troubles.refuse_after and self.asked > troubles.refuse_after:
            troubles.refuse_after, self.refuses_until = 0, now + troubles.refuse_seconds
        if now < self.dead_until:
            return "dead"
        while recent and recent[0] <= now - 1:
            recent.popleft()
        if now < self.refuses_until or len(recent) >= troubles.limit:
            return "429"
        recent.append(now)
        return "answered"

    async def order(self, request: web.Request) -> web.Response:
        """Return the state of an order."""
        return web.json_response(order_state(int(request.match_info["number"])))

    async def stats(self, request: web.Request) -> web.Response:
        """Return the bill and the counts."""
        requests = Counter(digest for _, digest in self.billed.values())
        return web.json_response(
            {
                "requests": self.asked,
                "outcomes": self.outcomes,
                "began": self.began,
                "by_time": self.by_time,
                "answers": len(self.billed),
                "tokens": sum(result["tokens"] for result, _ in self.billed.values()),
                "saved": self.saved,
                "requests_billed": requests,
            }
        )

    async def control(self, request: web.Request) -> web.Response:
        """Change the faults. Numbers of requests count from the next request."""
        for name, value in (await request.json()).items():
            setattr(self.troubles, name, value + self.asked if name.endswith("_after") else value)
        return web.json_response(vars(self.troubles))


def running_service(**troubles: float) -> AbstractContextManager[RunningService]:
    """Run the service in a separate process, which ends with the ``with`` block or with this process."""
    return running("examples.agents.service", 0, **troubles)


if __name__ == "__main__":
    run_service(__doc__, Troubles, lambda troubles: Service(troubles).app())
