"""Messages between a relay and a home: tuples, of which the first element says what they are.

A home asks for everything, and a relay sends nothing that was not asked for: so neither waits for the other to read
while that one writes. The exception is how an epoch begins.

| from  | message                                     | means                                                        |
| ----- | ------------------------------------------- | ------------------------------------------------------------ |
| relay | ``secret`` (bytes, not pickled)             | it may talk to the home                                      |
| relay | ``Visit``                                   | who comes                                                    |
| home  | ``WELCOME``, whether it has the level       | it comes in, and sends the level if it is asked for          |
| home  | ``LATE``                                    | it does not: a newer attempt has been here                   |
| relay | subtask, ``TaskFacts``                      | run an epoch                                                 |
| home  | ``MORE``                                    | give the next buffers; the answer is a list, or None at last |
| home  | ``GET``, chunk, whether it may be missing   | read from Spark's state; the answer is bytes, or None        |
| home  | ``PUT``, chunk, bytes                       | write to Spark's state                                       |
| home  | ``REMOVE``, chunk                           | remove from Spark's state                                    |
| home  | ``OUT``, buffers                            | emit them                                                    |
| home  | ``DONE``, next wake-up, accumulators        | the epoch's end                                              |
| home  | ``FAILED``, kind, text, accumulators        | the epoch's other end                                        |
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from enum import IntEnum
from typing import Any, NamedTuple

from pillarbox._runtime.spark.homes.surroundings import Surroundings

_LENGTH = struct.Struct("!Q")

# Up to this many bytes are copied, so that a message is one packet.
_SMALL = 1 << 14


class LostError(Exception):
    """The other end of a connection has gone."""


class Kind(IntEnum):
    """The kinds of messages of a home."""

    MORE = 0
    GET = 1
    PUT = 2
    REMOVE = 3
    OUT = 4
    DONE = 5
    FAILED = 6
    WELCOME = 7
    LATE = 8


class Visit(NamedTuple):
    """A caller that comes to a home.

    Attributes:
        place: the level and state partition whose tasks are asked for, with the digest of the level's host.
        attempt: the task of Spark's; later ones have higher numbers.
        surroundings: of its worker.
    """

    place: str
    attempt: int
    surroundings: Surroundings


class Channel:
    """One end of a connection. Any thread sends and asks; else, one thread at a time receives.

    Attributes:
        is_lost: whether the other end has gone.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.is_lost = False
        self._socket = connected
        self._input = connected.makefile("rb", buffering=1 << 16)
        self._writing = threading.Lock()
        self._asking = threading.Lock()

    def ask(self, *message: Any) -> Any:
        """Send a message, and return the answer.

        Raises:
            LostError: the other end has gone.
        """
        with self._asking:
            self.send(message)
            return self.receive()

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            LostError: the other end has gone.
        """
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, content: bytes) -> None:
        """Send bytes: a message that is pickled already, or none.

        Raises:
            LostError: the other end has gone.
        """
        header = _LENGTH.pack(len(content))
        try:
            with self._writing:
                if len(content) < _SMALL:
                    self._socket.sendall(header + content)
                else:
                    self._socket.sendall(header)
                    self._socket.sendall(content)
        except (OSError, ValueError) as error:
            raise self._lost(error) from None

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            LostError: the other end has gone, or has sent nothing in the time that it has.
        """
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self, most: int | None = None) -> bytes:
        """Return the next message as bytes, at most so many.

        Raises:
            LostError: as of :meth:`receive`; or it is longer.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if most is not None and length > most:
            raise self._lost(f"{length} bytes instead of at most {most}")
        return self._read(length)

    def _read(self, size: int) -> bytes:
        try:
            found: bytes | None = self._input.read(size)
        except (OSError, ValueError) as error:
            raise self._lost(error) from None
        if found is None or len(found) < size:
            raise self._lost("it has closed the connection")
        return found

    def _lost(self, why: object) -> LostError:
        self.is_lost = True
        return LostError(f"the other end has gone: {why}")

    def set_timeout(self, seconds: float | None) -> None:
        """Let reading and writing take this long; None: any time."""
        self._socket.settimeout(seconds)

    def cut(self) -> None:
        """Let everybody who reads or writes at either end fail. Any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def close(self) -> None:
        """Close this end."""
        self.is_lost = True
        self._input.close()
        self._socket.close()

    def fileno(self) -> int:
        """Return the connection's number, for those who wait for it."""
        return self._socket.fileno()
