"""The server of a process's dashboard: one for all of its queries, in a thread of its own."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Iterable
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.running import observing
from pillarbox._runtime.spark.telling import tell
from pillarbox_tools.dashboard.app import make_app
from pillarbox_tools.dashboard.guard import is_loopback
from pillarbox_tools.dashboard.shown import ShownQuery
from pillarbox_tools.dashboard.told import Told

# How long a server has to start, and to end (seconds).
_PATIENCE = 10.0


class Dashboard(observing.Dashboard):
    """A dashboard that is open.

    Args:
        host: the address to listen on.
        port: the port; 0, or if it is in use: any that is free.
        token: what a request must have; None: nothing on loopback, and a random one elsewhere.

    Attributes:
        url: where to open it in a browser, with the token.

    Raises:
        ConfigurationError: the address is none of this machine, or Starlette and uvicorn are missing.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise ConfigurationError(
                f"the dashboard needs Starlette and uvicorn ({error}): pip install 'pillarbox[dashboard]'"
            ) from error
        self._queries: dict[str, Told] = {}
        self._token = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
        self.asked_port = port
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        named = socket.gethostname() if host in ("0.0.0.0", "::") else shown
        query = "" if self._token is None else f"?token={self._token}"
        self.url: str = f"http://{named}:{self.port}/{query}"
        hosts = frozenset({host, named, socket.gethostname(), socket.getfqdn()})
        config = uvicorn.Config(
            make_app(lambda: dict(self._queries), hosts, self._token),
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

    def show(self, query: ShownQuery) -> None:
        """Show a query, also after its end; another run of it takes its place. Any thread."""
        known = self._queries.get(query.id)
        if known is None or known.query is not query:
            self._queries = {**self._queries, query.id: Told(query)}

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
            tell(f"port {port} of {host} is in use, so the dashboard listens on another one")
            return _listen(host, 0)
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port} ({error.strerror or error}): choose another port, as in"
            " pillarbox.dashboard(query, port=0), which takes any that is free"
        ) from error
    return found  # type: ignore[no-any-return]


_lock = threading.Lock()
# The open dashboard; there is one at most.
_open: list[Dashboard] = []


def open_dashboard(queries: Iterable[ShownQuery], host: str, port: int, token: str | None = None) -> Dashboard:
    """Return the dashboard of this process, opened if it is not open, in which queries are shown.

    Raises:
        ConfigurationError: it cannot be opened, or is open on another port.
    """
    with _lock:
        _open[:] = [each for each in _open if each.is_open]
        if not _open:
            _open.append(Dashboard(host, port, token))
        [dashboard] = _open
        if port not in (0, dashboard.port, dashboard.asked_port):
            raise ConfigurationError(
                f"the dashboard of this process is open on port {dashboard.port}, so it cannot open on port {port}: one"
                " dashboard shows all queries of a process"
            )
        for query in queries:
            dashboard.show(query)
        return dashboard
