"""The starter's connections: with those who ask for homes, and with the homes."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeFacts
from pillarbox._runtime.spark.tasks.channel import Channel, LostError

# Messages to homes are small, so sending waits for nobody (seconds).
_TALK_SECONDS = 1.0

#: The clock is looked at so often, and so often who waits is told that the answer will come (seconds).
TICK_SECONDS = 0.5

#: Tells who waits that the answer will come.
WAIT = {"wait": True}


@dataclass
class Client:
    """A connection of a worker or a driver, and what has come of its next line."""

    connected: socket.socket
    line: bytes = b""
    has_begun: bool = False
    knows_secret: bool = False


@dataclass
class Ending:
    """Somebody who waits for the end of a run."""

    run: str
    client: Client
    until: float
    homes: set[int]


class Greeter:
    """Tells clients to wait, in a thread, while the main thread does what takes long.

    Args:
        clients: who has connected already.
    """

    def __init__(self, listening: socket.socket, clients: Iterable[socket.socket] = ()) -> None:
        self._listening = listening
        self._is_over = threading.Event()
        self.clients: list[socket.socket] = list(clients)
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


class HomeChannel:
    """The starter's connection with a home.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, name: str) -> None:
        connected = sockets.connect(name, _TALK_SECONDS)
        self.pid = sockets.peer_pid(connected)
        self._channel = Channel(connected)
        # The home answers the hello as it does a question.
        self._is_asked = True
        self._channel.send_bytes(json.dumps(Hello("", "")._asdict()).encode())

    def ask(self) -> None:
        """Ask for its facts, unless it owes an answer."""
        if not self._is_asked:
            self._is_asked = True
            with suppress(LostError):
                self._channel.send_bytes(ASK)

    def facts(self) -> HomeFacts:
        """Receive the answer.

        Raises:
            LostError: the home has gone.
        """
        found = HomeFacts(**json.loads(self._channel.receive_bytes()))
        self._is_asked = False
        return found

    def fileno(self) -> int:
        return self._channel.fileno()

    def close(self) -> None:
        self._channel.close()


def readable(channels: list[HomeChannel], within: float) -> list[HomeChannel]:
    """Return those that have an answer, waiting for one (seconds)."""
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel, selectors.EVENT_READ, channel)
        return [key.data for key, _ in selector.select(max(0.0, within))]
