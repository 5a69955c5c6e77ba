"""A stand-in for a model that scores payments: ``python model.py`` serves it on port 8123 until Ctrl-C.

``GET /score?card=c007&amount=1200.00`` answers ``{"score": 0.857}``. It takes 20 requests a second; what is more than
that gets the answer 429 with a ``Retry-After`` of one second.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

PORT = 8123
LIMIT = 20  # requests a second


class Model(BaseHTTPRequestHandler):
    """Answers requests; the larger an amount, the higher its score."""

    recent: ClassVar[deque[float]] = deque(maxlen=LIMIT)

    def do_GET(self) -> None:
        """Score a payment."""
        now = time.monotonic()
        if len(self.recent) == LIMIT and now - self.recent[0] < 1:
            self._answer(429, {"error": "too many requests"}, {"Retry-After": "1"})
            return
        self.recent.append(now)
        amount = float(parse_qs(urlsplit(self.path).query)["amount"][0])
        self._answer(200, {"score": round(amount / (amount + 200), 3)}, {})

    def _answer(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def serve(port: int = PORT) -> ThreadingHTTPServer:
    """Return a server that listens on loopback; port 0 takes any that is free."""
    return ThreadingHTTPServer(("127.0.0.1", port), Model)


if __name__ == "__main__":
    with serve(int(sys.argv[1]) if len(sys.argv) > 1 else PORT) as server:
        print(f"the model answers at http://127.0.0.1:{server.server_port}/score", flush=True)
        server.serve_forever()
