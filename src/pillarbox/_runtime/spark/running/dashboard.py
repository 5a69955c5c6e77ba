"""``dashboard``: the pages that show the queries of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._dashboard.server import Dashboard, open_dashboard
from pillarbox._graph.dashboard_place import DEFAULT_PORT, checked_port
from pillarbox._runtime.spark.running.following import watched_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def dashboard(
    query: StreamingQuery, port: int = DEFAULT_PORT, *, host: str = "127.0.0.1", token: str | None = None
) -> Dashboard:
    """Open the dashboard of this process, and show a query in it.

    It shows the plan, where the time of an epoch goes, why event time is where it is, heavy keys, calls, the growth of
    state, failures, and the state and timers of a key. One dashboard shows all queries of a process: a second call adds
    a query to it. It needs the extra ``pillarbox[dashboard]``, and ends with the process. Under Spark Connect it runs
    in the client.

    Only this machine can ask, by default. Everybody who may ask sees keys and records: see docs/security.md before you
    listen on another address.

    Args:
        query: as :func:`pillarbox.start` has returned it, or the ``start()`` of its writer.
        port: the port to listen on; 0: any that is free.
        host: the address to listen on.
        token: what a browser must know; None: nothing on loopback, and a random text elsewhere, a part of ``url``.

    Returns:
        The dashboard: ``url`` is where to open it, and ``close()`` closes it.

    Raises:
        ConfigurationError: the port is taken; the dashboard is open on another one; or Starlette or uvicorn is missing.
        ProgramError: it is no query with a program of pillarbox, or another process has started it.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> print(pillarbox.dashboard(query).url)  # doctest: +SKIP
        http://127.0.0.1:8082/
    """
    checked_port(port, "dashboard()")
    shown = watched_query(query, "dashboard()", ": 'pillarbox dashboard CHECKPOINT' shows what its checkpoint has")
    return open_dashboard([shown], host, port, token)
