"""A connection between two processes of a query, for bytes and pickled messages."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from typing import Any
from weakref import WeakSet

_LENGTH = struct.Struct("!Q")

# Messages smaller than this share a packet.
_SMALL = 1 << 14


_sockets: WeakSet[socket.socket] = WeakSet()


def close_in_forks(private: socket.socket) -> None:
    """Close a socket in forked processes, so that its peer notices when this process exits."""
    _sockets.add(private)


def _close_sockets() -> None:
    for private in list(_sockets):
        number = private.detach()  # a file object of the socket would keep it open
        if number >= 0:
            os.close(number)


os.register_at_fork(after_in_child=_close_sockets)


class ChannelLostError(Exception):
    """The peer of a connection has closed it."""


class ChannelSilentError(ChannelLostError):
    """The peer of a connection has sent nothing within the timeout."""


class Channel:
    """One end of a connection. Several threads may send, but only one may receive.

    If the connection is closed, methods raise `ChannelLostError`; on a timeout, `ChannelSilentError`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.is_lost = False
        self.has_sent = False
        self._socket = connected
        close_in_forks(connected)
        self._writing = threading.Lock()
        # Messages to send with the next message.
        self._posted: list[bytes] = []
        self._asking = threading.Lock()

    def ask(self, *message: Any) -> Any:
        with self._asking:
            self.send(message)
            return self.receive()

    def ask_bytes(self, *message: Any) -> bytes:
        with self._asking:
            self.send(message)
            return self.receive_bytes()

    def post(self, message: Any) -> None:
        """Queue a message, to send it soon or together with the next message."""
        self._write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL), waits=True)

    def send(self, message: Any) -> None:
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, content: bytes) -> None:
        self._write(content, waits=False)

    def _write(self, content: bytes, *, waits: bool) -> None:
        try:
            with self._writing:
                self._posted += (_LENGTH.pack(len(content)), content)
                if waits and sum(map(len, self._posted)) <= _SMALL:
                    return
                parts, self._posted = self._posted, []
                large = parts.pop() if len(content) >= _SMALL else b""
                self._socket.sendall(b"".join(parts))
                if large:
                    self._socket.sendall(large)
                self.has_sent = True
        except (OSError, ValueError) as error:
            raise self._lost(error) from None

    def receive(self) -> Any:
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self, most: int | None = None) -> bytes:
        """Return the next message as bytes. Raises `ChannelLostError` if it is longer than ``most`` bytes."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if most is not None and length > most:
            raise self._lost(f"a message has {length} bytes, but the maximum is {most}")
        return self._read(length)

    def _read(self, size: int) -> bytes:
        """Read exactly ``size`` bytes, without reading ahead, so that polling detects the next message."""
        read = bytearray(size)
        rest = memoryview(read)
        try:
            while rest:
                count = self._socket.recv_into(rest)
                if not count:
                    raise self._lost("the other process closed it")
                rest = rest[count:]
        except TimeoutError as error:
            self.is_lost = True
            raise ChannelSilentError(f"the other process sends nothing: {error}") from None
        except (OSError, ValueError) as error:
            raise self._lost(error) from None
        return bytes(read)

    def _lost(self, why: object) -> ChannelLostError:
        self.is_lost = True
        return ChannelLostError(f"the connection was lost: {why}")

    def set_timeout(self, seconds: float | None) -> None:
        try:
            self._socket.settimeout(seconds)
        except OSError as error:
            raise self._lost(error) from None

    def cut(self) -> None:
        """Make all reads and writes at both ends fail. Thread-safe."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self.is_lost = True
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()
