"""The starter's connections to clients (workers and drivers) and to homes."""

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
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeDescription
from pillarbox._runtime.spark.tasks.channel import Channel, ChannelLostError

# Timeout for messages to homes. Never reached, because these messages are small.
_TALK_SECONDS = 1.0

#: Interval of timer checks and of ``wait`` answers (seconds).
TICK_SECONDS = 0.5

#: Announces a later answer.
WAIT = {"wait": True}


@dataclass
class Client:
    """The starter's connection to a worker or driver."""

    connected: socket.socket
    line: bytes = b""
    has_begun: bool = False
    knows_secret: bool = False


@dataclass
class EndingClient:
    """A client that waits until all homes of a run have ended."""

    run: str
    client: Client
    until: float
    homes: set[int]


class ClientHoldThread:
    """A thread that accepts clients while the main thread is busy, and answers ``wait``."""

    def __init__(self, listening: socket.socket, clients: Iterable[socket.socket] = ()) -> None:
        self._listening = listening
        self._is_over = threading.Event()
        self.clients: list[socket.socket] = list(clients)
        self._thread = threading.Thread(target=self._greet, name="greeter", daemon=True)
        self._thread.start()

    def _greet(self) -> None:
        self._listening.settimeout(0.1)
        sent_at = 0.0
        while not self._is_over.is_set():
            with suppress(OSError):
                connected, _ = self._listening.accept()
                connected.setblocking(False)
                self.clients.append(connected)
                sent_at = 0.0
            if time.monotonic() - sent_at > TICK_SECONDS:
                sent_at = time.monotonic()
                for client in self.clients:
                    send(client, WAIT)

    def end(self) -> list[socket.socket]:
        self._is_over.set()
        self._thread.join()
        self._listening.settimeout(None)
        return self.clients


def send(connected: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):
        connected.sendall(json.dumps(answer).encode() + b"\n")


class StarterHomeClient:
    """The starter's connection to a home."""

    def __init__(self, name: str) -> None:
        connected = sockets.connect(name, _TALK_SECONDS)
        self.pid = sockets.peer_pid(connected)
        self._channel = Channel(connected)
        # A home also answers the hello.
        self._is_asked = True
        self._channel.send_bytes(json.dumps(Hello("", "")._asdict()).encode())

    def ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            with suppress(ChannelLostError):
                self._channel.send_bytes(ASK)

    def facts(self) -> HomeDescription:
        facts = HomeDescription(**json.loads(self._channel.receive_bytes()))
        self._is_asked = False
        return facts

    def fileno(self) -> int:
        return self._channel.fileno()

    def close(self) -> None:
        self._channel.close()


def readable(channels: list[StarterHomeClient], within: float) -> list[StarterHomeClient]:
    """Wait up to ``within`` seconds, and return the channels whose home has answered."""
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel, selectors.EVENT_READ, channel)
        return [key.data for key, _ in selector.select(max(0.0, within))]
