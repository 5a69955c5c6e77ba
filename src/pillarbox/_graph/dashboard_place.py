"""Where a dashboard listens, as a program says it."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox._errors import ConfigurationError, ProgramError, is_count, shorten

#: Flink's dashboard has 8081, and Spark's 4040.
DEFAULT_PORT = 8082
_MOST = 65535


class DashboardPlace(NamedTuple):
    """An address to listen on, and the token; None: no token on loopback, and a random one elsewhere."""

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


def checked_token(token: object, method: str) -> str | None:
    """Return a token, or None if none is given.

    Raises:
        ConfigurationError: it is empty, or no text.
    """
    if token is None:
        return None
    if not isinstance(token, str):
        raise ConfigurationError(f"{method}: a token is a str, not a value of type {type(token).__name__}")
    if not token:
        raise ConfigurationError(
            f"{method}: the token is empty, so everybody would get in: is the environment variable that should hold it"
            " not set? Without a token, the dashboard makes a random one, unless it listens on loopback"
        )
    return token
