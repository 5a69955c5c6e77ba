"""The dashboard's server: one per process, for all queries, in its own thread."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Iterable
from urllib.parse import quote

from pillarbox._errors import ConfigurationError
from pillarbox._graph.dashboard_place import DEFAULT_PORT, checked_token
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running import monitoring
from pillarbox_tools.addresses import cannot_listen, is_loopback, url_of
from pillarbox_tools.dashboard.versioned_view import VersionedView
from pillarbox_tools.model.query_model import StaticQueryModel

_PATIENCE = 10.0
_MOST_ENDED = 20


class Dashboard(monitoring.Dashboard):
    """An open dashboard.

    Args:
        port: the port to listen on. If it is 0 or in use, any free port.
        token: the token that requests need. By default, a random token, or no token for a loopback address.

    Attributes:
        url: its address for a browser, with the token.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        try:
            import uvicorn

            from pillarbox_tools.dashboard.app import make_app
        except ImportError as error:
            raise ConfigurationError(
                f"the dashboard needs Starlette and uvicorn ({error}): pip install 'pillarbox[dashboard]'"
            ) from error
        token = checked_token(token, "dashboard()")
        self._changing = threading.Lock()  # guards changes to the queries
        self._queries: dict[str, VersionedView] = {}
        self._token = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
        self._host = host
        self.asked_port = port
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        query = "" if self._token is None else f"?token={quote(self._token, safe='')}"
        self.url: str = url_of(host, self.port, query)
        config = uvicorn.Config(
            make_app(lambda: dict(self._queries), self.port, self._token),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        # Runs in a thread, because the program owns the signal handlers.
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="pillarbox dashboard", daemon=True
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self._server.should_exit

    def check_same(self, host: str | None, port: int | None, token: str | None) -> None:
        if port not in (None, 0, self.port, self.asked_port):
            raise _differs(f"on port {self.port}", f"on port {port}")
        hosts = {"loopback" if is_loopback(name) else name.lower() for name in (self._host, host or self._host)}
        if len(hosts) > 1:
            raise _differs(f"on host {self._host}", f"on host {host}")
        if token is not None and token != self._token:
            raise _differs("without a token" if self._token is None else "with another token", "with this token")

    def show(self, query: StaticQueryModel) -> None:
        """Show a query, in place of its earlier run. Thread-safe."""
        with self._changing:
            shown = self._queries.get(query.id)
            if shown is not None and shown.query is query:
                return
            queries = {number: other for number, other in self._queries.items() if number != query.id}
            for number in [number for number, other in queries.items() if other.query.has_ended][:-_MOST_ENDED]:
                del queries[number]
            self._queries = {**queries, query.id: VersionedView(query)}

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    is_ipv6 = ":" in host
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE and port:
            # Not an error, because a query may already be running.
            notify(f"port {port} of {host} is in use, so the dashboard listens on another port")
            return _listen(host, 0)
        raise cannot_listen("the dashboard", "pillarbox.dashboard", host, port, error) from error


def _differs(is_open: str, requested: str) -> ConfigurationError:
    return ConfigurationError(
        f"the dashboard of this process is already open {is_open}, so it cannot open {requested}: it shows all queries"
        " of the process, so pass the same host=, port= and token=, or close it first"
    )


_lock = threading.Lock()
_open: list[Dashboard] = []


def open_dashboard(
    queries: Iterable[StaticQueryModel], host: str | None, port: int | None, token: str | None = None
) -> Dashboard:
    """Show queries in this process's dashboard. Raises if it is open on a different host or port."""
    checked_token(token, "dashboard()")
    with _lock:
        _open[:] = [dashboard for dashboard in _open if dashboard.is_open]
        if _open:
            _open[0].check_same(host, port, token)
        else:
            _open.append(Dashboard(host or "127.0.0.1", DEFAULT_PORT if port is None else port, token))
        [dashboard] = _open
        for query in queries:
            dashboard.show(query)
        return dashboard
