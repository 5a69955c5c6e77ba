"""The address and the token of a query's dashboard."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox._errors import ConfigurationError, ProgramError, is_count, shorten

#: Flink uses 8081, Spark 4040.
DEFAULT_PORT = 8082
_MOST = 65535


class DashboardAddress(NamedTuple):
    """The address to listen on, and the token (by default, generated unless the address is a loopback address)."""

    host: str
    port: int
    token: str | None


def checked_port(port: object, method: str) -> int:
    if isinstance(port, int) and is_count(port, 0) and port <= _MOST:
        return port
    raise ProgramError(f"{method}: a port must be a whole number from 0 to {_MOST}, not {shorten(port)}")


def checked_token(token: object, method: str) -> str | None:
    if token is None:
        return None
    if not isinstance(token, str):
        raise ConfigurationError(f"{method}: a token must be a str, not a value of type {type(token).__name__}")
    if not token:
        raise ConfigurationError(
            f"{method}: the token is an empty string, which would admit everyone: is its environment variable set? If"
            f" no token is passed, the dashboard generates one (on loopback, none is needed)"
        )
    return token
