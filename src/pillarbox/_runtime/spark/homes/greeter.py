"""The starter's first answers: it makes who connects wait, while it imports what homes need."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

#: The clock is looked at so often, and so often who waits is told that the answer will come (seconds).
TICK_SECONDS = 0.5

#: Tells who waits that the answer will come.
WAIT = {"wait": True}


class Greeter:
    """Tells clients to wait, in a thread, while this process imports what homes need."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._is_over = threading.Event()
        self.clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._greet, name="greeter", daemon=True)
        self._thread.start()

    def _greet(self) -> None:
        self._listening.settimeout(0.1)
        told_at = 0.0
        while not self._is_over.is_set():
            with suppress(OSError):
                connected, _ = self._listening.accept()
                connected.setblocking(False)
                self.clients.append(connected)
                told_at = 0.0
            if time.monotonic() - told_at > TICK_SECONDS:
                told_at = time.monotonic()
                for each in self.clients:
                    send(each, WAIT)

    def end(self) -> list[socket.socket]:
        """End the thread, and return who has connected."""
        self._is_over.set()
        self._thread.join()
        self._listening.settimeout(None)
        return self.clients


def send(connected: socket.socket, answer: dict[str, Any]) -> None:
    """Answer a request."""
    with suppress(OSError):  # who asked has gone
        connected.sendall(json.dumps(answer).encode() + b"\n")
