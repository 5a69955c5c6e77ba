"""The server of a process's dashboard: one for all of its queries, in a thread of its own."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Iterable
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._graph.dashboard_place import DEFAULT_PORT, checked_token
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running import observing
from pillarbox_tools.dashboard.app import make_app
from pillarbox_tools.dashboard.changes import Changes
from pillarbox_tools.dashboard.guard import is_loopback, quoted
from pillarbox_tools.model.shown import ShownQuery

# How long a server has to start, and to end (seconds).
_PATIENCE = 10.0
# How many queries that have ended are kept.
_MOST_ENDED = 20


class Dashboard(observing.Dashboard):
    """A dashboard that is open.

    Args:
        host: the address to listen on.
        port: the port; 0, or if it is in use: any that is free.
        token: the token that requests need; None: no token on loopback, and a random one elsewhere.

    Attributes:
        url: where to open it in a browser, with the token.

    Raises:
        ConfigurationError: the token is empty, this machine does not have the address, or Starlette or uvicorn is
            missing.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise ConfigurationError(
                f"the dashboard needs Starlette and uvicorn ({error}): pip install 'pillarbox[dashboard]'"
            ) from error
        token = checked_token(token, "dashboard()")
        self._changing = threading.Lock()  # guards changes of the queries
        self._queries: dict[str, Changes] = {}
        # The ids of queries that have ended, in the order in which that was seen.
        self._ended: dict[str, None] = {}
        self._token = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
        self._host = host
        self.asked_port = port
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        named = socket.gethostname() if host in ("0.0.0.0", "::") else shown
        query = "" if self._token is None else f"?token={quoted(self._token)}"
        self.url: str = f"http://{named}:{self.port}/{query}"
        config = uvicorn.Config(
            make_app(lambda: dict(self._queries), self.port, self._token),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        # The handlers of signals are the program's.
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="pillarbox dashboard", daemon=True
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive() and not self._server.should_exit

    def check_same(self, host: str | None, port: int | None, token: str | None) -> None:
        """Check that this dashboard has the host, the port and the token that another call asks for.

        Raises:
            ConfigurationError: it is open with another host, port or token.
        """
        if port not in (None, 0, self.port, self.asked_port):
            raise _differs(f"on port {self.port}", f"on port {port}")
        if host is not None and not self._is_at(host):
            raise _differs(f"on host {self._host}", f"on host {host}")
        if token is not None and token != self._token:
            raise _differs("without a token" if self._token is None else "with another token", "with this token")

    def _is_at(self, host: str) -> bool:
        return host.lower() == self._host.lower() or self._socket.getsockname()[0] in _addresses(host)

    def show(self, query: ShownQuery) -> None:
        """Show a query, also after its end; another run of it replaces it. Any thread.

        Of the queries that have ended, the last 20 are kept.
        """
        with self._changing:
            known = self._queries.get(query.id)
            if known is not None and known.query is query:
                return
            self._ended.pop(query.id, None)
            others = {number: each for number, each in self._queries.items() if number != query.id}
            queries = {**others, query.id: Changes(query)}
            if len(queries) > _MOST_ENDED:
                self._ended |= {number: None for number, each in queries.items() if each.query.has_ended}
                for number in list(self._ended)[:-_MOST_ENDED]:
                    del self._ended[number], queries[number]
            self._queries = queries

    def close(self) -> None:
        """Close the server."""
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens: on another port, which is told, if this one is in use.

    Raises:
        ConfigurationError: the address is none of this machine, or the port needs rights that this process lacks.
    """
    found: Any = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(64)
    except OSError as error:
        if found is not None:
            found.close()
        if error.errno == errno.EADDRINUSE and port:
            # A query may run already, which is worth more than the port.
            notify(f"port {port} of {host} is in use, so the dashboard listens on another one")
            return _listen(host, 0)
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port} ({error.strerror or error}): choose another port, as in"
            " pillarbox.dashboard(query, port=0), which takes any that is free"
        ) from error
    return found  # type: ignore[no-any-return]


def _addresses(host: str) -> set[str]:
    """Return the addresses of a host."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _differs(is_open: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"the dashboard of this process is open {is_open}, so it cannot open {wanted}: one dashboard shows all queries"
        " of a process, so ask for the same host, port and token, or close it first"
    )


_lock = threading.Lock()
# The open dashboard; there is one at most.
_open: list[Dashboard] = []


def open_dashboard(
    queries: Iterable[ShownQuery], host: str | None, port: int | None, token: str | None = None
) -> Dashboard:
    """Return the dashboard of this process, opened if it is not open, and show queries in it.

    Args:
        host: the address to listen on, and ``port``: the port. None: as of the open dashboard.

    Raises:
        ConfigurationError: it cannot be opened, or is open with another host, port or token.
    """
    checked_token(token, "dashboard()")
    with _lock:
        _open[:] = [each for each in _open if each.is_open]
        if _open:
            _open[0].check_same(host, port, token)
        else:
            _open.append(Dashboard(host or "127.0.0.1", DEFAULT_PORT if port is None else port, token))
        [dashboard] = _open
        for query in queries:
            dashboard.show(query)
        return dashboard
