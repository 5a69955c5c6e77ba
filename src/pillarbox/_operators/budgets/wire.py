"""Signed messages between executors' event loops and the driver's ledger.

Both ends know a token, which is part of the pickled program. Each end first sends a nonce. The key is derived from the
token and both nonces. A message is JSON with a MAC over its number, direction and text, so that other processes can
neither forge nor replay it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_MAC = 16
_NONCE = 16
# Maximum size of a message (bytes).
_MOST = 1 << 16


class BudgetMessageError(Exception):
    """Raised for a message that no process with the token has signed."""


def token_id(token: bytes) -> bytes:
    return hashlib.sha256(b"pillarbox budgets" + token).digest()[:16]


class BudgetConnection:
    """One end of a connection between an event loop and the driver's ledger."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, *, is_driver: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._keys = [hmac.digest(key, side, "sha256") for side in (b"from executor", b"from driver")]
        self._is_driver = is_driver
        self._numbers = [0, 0]

    @staticmethod
    async def to_driver(host: str, port: int, token: bytes) -> BudgetConnection:
        """Connect to the driver.

        Raises:
            OSError: the driver is unreachable.
            EOFError: the driver does not know the token.
        """
        reader, writer = await asyncio.open_connection(host, port)
        nonce = secrets.token_bytes(_NONCE)
        writer.write(token_id(token) + nonce)
        other = await reader.readexactly(_NONCE)
        return BudgetConnection(reader, writer, hmac.digest(token, nonce + other, "sha256"), is_driver=False)

    @staticmethod
    async def to_executor(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token_of: Callable[[bytes], bytes | None]
    ) -> tuple[BudgetConnection, bytes]:
        """Accept an executor's connection. Return it with the executor's token."""
        named, other = await reader.readexactly(16), await reader.readexactly(_NONCE)
        token = token_of(named)
        if token is None:
            raise BudgetMessageError("its token is unknown")
        nonce = secrets.token_bytes(_NONCE)
        writer.write(nonce)
        return BudgetConnection(reader, writer, hmac.digest(token, other + nonce, "sha256"), is_driver=True), token

    def send(self, *message: Any) -> None:
        body = json.dumps(message).encode()
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(body)) + self._mac(self._is_driver, body) + body)

    async def receive(self) -> list[Any]:
        """Return the next message.

        Raises:
            EOFError: the other end has disconnected.
            OSError: the connection is lost.
            BudgetMessageError: the other end does not know the token.
        """
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > _MOST:
            raise BudgetMessageError(f"a message has {length} bytes, which is too many")
        mac, body = await self._reader.readexactly(_MAC), await self._reader.readexactly(length)
        if not hmac.compare_digest(mac, self._mac(not self._is_driver, body)):
            raise BudgetMessageError("a message has the wrong signature")
        message: list[Any] = json.loads(body)
        return message

    def _mac(self, from_driver: bool, body: bytes) -> bytes:
        number = self._numbers[from_driver]
        self._numbers[from_driver] += 1
        return hmac.digest(self._keys[from_driver], _NUMBER.pack(number) + body, "sha256")[:_MAC]

    def close(self) -> None:
        self._writer.close()
