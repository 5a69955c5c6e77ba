"""A simulated model that scores payments. ``python model.py`` serves it on port 8123 until Ctrl-C.

``GET /score?card=c007&amount=1200.00`` returns ``{"score": 0.857}``. The model accepts 20 requests per second, and
answers further requests with status 429 and a ``Retry-After`` of one second.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PORT = 8123
LIMIT = 20  # requests a second


class RateLimit:
    """Admits a number of requests per second. Requests arrive in several threads, so a lock protects each decision."""

    def __init__(self, most: int) -> None:
        self.lock = threading.Lock()
        self.recent: deque[float] = deque(maxlen=most)

    def admits(self) -> bool:
        """Return whether a request is admitted, and count it."""
        with self.lock:
            now = time.monotonic()
            if len(self.recent) == self.recent.maxlen and now - self.recent[0] < 1:
                return False
            self.recent.append(now)
            return True


class ModelServer(ThreadingHTTPServer):
    """Serves the model on loopback."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Model)
        self.limit = RateLimit(LIMIT)


class Model(BaseHTTPRequestHandler):
    """Answers requests. Larger amounts have higher scores."""

    server: ModelServer

    def do_GET(self) -> None:
        """Score a payment."""
        if not self.server.limit.admits():
            self._answer(429, {"error": "too many requests"}, {"Retry-After": "1"})
            return
        amount = float(parse_qs(urlsplit(self.path).query)["amount"][0])
        self._answer(200, {"score": round(amount / (amount + 200), 3)}, {})

    def _answer(self, status: int, answer: dict[str, Any], headers: dict[str, str]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def serve(port: int = PORT) -> ModelServer:
    """Return a server that listens on loopback. With port 0, it uses any free port."""
    return ModelServer(port)


if __name__ == "__main__":
    with serve(int(sys.argv[1]) if len(sys.argv) > 1 else PORT) as server:
        print(f"the model answers at http://127.0.0.1:{server.server_port}/score", flush=True)
        server.serve_forever()
