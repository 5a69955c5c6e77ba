"""A simulated language model that summarizes chats. ``python model.py`` serves it on port 8124 until Ctrl-C.

``POST /summarize`` with a chat as text returns ``{"summary": "..."}``. The model accepts 40 requests per second, and
answers further requests with status 429 and a ``Retry-After`` of one second. It answers chats that contain card numbers
with status 400.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8124
LIMIT = 40  # requests a second
CARD_NUMBER = re.compile(r"\b\d{4} \d{4} \d{4} \d{4}\b")


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
    """Serves the model on loopback, and counts the answers by status."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Model)
        self.limit = RateLimit(LIMIT)
        self.lock = threading.Lock()
        self.answers: Counter[int] = Counter()


class Model(BaseHTTPRequestHandler):
    """Answers requests."""

    server: ModelServer

    def do_POST(self) -> None:
        """Summarize a chat."""
        chat = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self.server.limit.admits():
            self._answer(429, {"error": "too many requests"}, {"Retry-After": "1"})
        elif CARD_NUMBER.search(chat):
            self._answer(400, {"error": "the chat has a card number in it"}, {})
        else:
            lines = chat.splitlines()
            self._answer(200, {"summary": f"{lines[0].rstrip('.?!')} ({len(lines)} lines)"}, {})

    def _answer(self, status: int, answer: dict[str, Any], headers: dict[str, str]) -> None:
        with self.server.lock:
            self.server.answers[status] += 1
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
        print(f"the model answers at http://127.0.0.1:{server.server_port}/summarize", flush=True)
        server.serve_forever()
