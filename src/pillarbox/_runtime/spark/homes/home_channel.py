"""The starter's connection with a home: who makes homes learns from it what they do, and what they were made for."""

from __future__ import annotations

import json
import selectors
from contextlib import suppress

from pillarbox._runtime.spark.homes import sockets
from pillarbox._runtime.spark.homes.wire import ASK, Hello, HomeFacts
from pillarbox._runtime.spark.tasks.channel import Channel, LostError

# What a home is told is small, and never waits for it to read.
_TALK_SECONDS = 1.0


class HomeChannel:
    """The starter's connection with a home.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, name: str) -> None:
        connected = sockets.connect(name, _TALK_SECONDS)
        self.pid = sockets.peer_pid(connected)
        self._channel = Channel(connected)
        # Who says that he is a starter is answered like one who asks.
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
