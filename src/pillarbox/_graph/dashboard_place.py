"""Where a dashboard listens, as a program says it."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox._errors import ProgramError, is_count, shorten

#: Flink's dashboard has 8081, and Spark's 4040.
DEFAULT_PORT = 8082
_MOST = 65535


class DashboardPlace(NamedTuple):
    """An address to listen on, and what a browser must know; None: nothing on loopback, and a random text elsewhere."""

    host: str
    port: int
    token: str | None


def checked_port(port: object, method: str) -> int:
    """Return a port.

    Raises:
        ProgramError: it is none.
    """
    if isinstance(port, int) and is_count(port, 0) and port <= _MOST:
        return port
    raise ProgramError(f"{method}: a port is a whole number from 0 to {_MOST}, not {shorten(port)}")
