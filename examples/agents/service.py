"""A stub language model that counts, bills, refuses and dies: HTTP on loopback, in its own process.

python -m examples.agents.service [--port 8124] [--limit 120] [--latency 60]

    POST /chat      {"customer": ..., "messages": [[role, text], ...]}, header Idempotency-Key: an answer and its tokens
    GET  /orders/N  the state of an order, which is free
    GET  /stats     the bill, the outcomes, and the requests of each quarter of a second
    POST /control   {"refuse_after": 900}: fields of `Troubles`

An answer depends on the request alone. A key is billed once: its next request receives the stored answer for nothing.
More than ``limit`` requests in a second are refused with status 429 and ``Retry-After``, and so is every request while
the service is overloaded. A card number is refused with status 422. A dead service closes connections unanswered.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from aiohttp import web

from examples.agents.model import CARD, Messages, answer

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = 4  # a second


@dataclass
class Troubles:
    """Faults.

    Attributes:
        limit: requests per second that the service accepts.
        latency: median time of an answer (ms).
        refuse_after: begins an overload after this many further requests; 0 for no overload.
        refuse_seconds: length of the overload.
        die_after: stops answering after this many further requests; 0 for never.
        dead_seconds: length of the outage.
    """

    limit: int = 120
    latency: float = 60.0
    refuse_after: int = 0
    refuse_seconds: float = 1.5
    die_after: int = 0
    dead_seconds: float = 2.0


class Service:
    """Requests, troubles and the bill. All in the event loop's thread."""

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
        """Return the routes."""
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
        number = int(request.match_info["number"])
        return web.json_response({"order": number, "state": ("sent", "packed", "lost")[number % 3]})

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
        """Change the troubles. Counts begin with the next request."""
        for name, value in (await request.json()).items():
            setattr(self.troubles, name, value + self.asked if name.endswith("_after") else value)
        return web.json_response(vars(self.troubles))


async def serve(troubles: Troubles, port: int) -> None:
    """Run until the process ends. The first line of the output is the address."""
    runner = web.AppRunner(Service(troubles).app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    host, bound, *_ = runner.addresses[0]
    print(f"http://{host}:{bound}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--while-stdin", action="store_true", help="end with the standard input")
    for field in fields(Troubles):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    port = arguments.pop("port")
    if arguments.pop("while_stdin"):
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(serve(Troubles(**arguments), port))


class RunningService:
    """A service in its process, which ends with this one.

    Attributes:
        url: its address, such as ``http://127.0.0.1:41234``.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def control(self, **troubles: float) -> None:
        """Change its troubles."""
        with urlopen(Request(f"{self.url}/control", json.dumps(troubles).encode()), timeout=100) as response:
            response.read()

    def stats(self) -> dict[str, Any]:
        """Return the bill and the counts so far."""
        with urlopen(f"{self.url}/stats", timeout=100) as response:
            stats: dict[str, Any] = json.load(response)
            return stats


@contextmanager
def running_service(**troubles: float) -> Iterator[RunningService]:
    """Run the service in its own process until the end of the block."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in troubles.items()]
    command = [sys.executable, "-m", "examples.agents.service", "--while-stdin", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the service did not start: exit code {process.wait()}")
        yield RunningService(url)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    main()
