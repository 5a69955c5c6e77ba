"""Public methods that ``pillarbox_tools`` implements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pillarbox._graph.dashboard_place import checked_port, checked_token
from pillarbox._runtime.spark.tools import needed_tools

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from typing_extensions import Self

#: Next to Flink's reporter at 9249.
METRICS_PORT = 9250
LIMIT = 1 << 30
TIMEOUT = 600.0


class _Server:
    """A server in this process."""

    url: str
    port: int

    @property
    def is_open(self) -> bool:
        """Whether the server is running."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the server."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Dashboard(_Server):
    """An open dashboard, as returned by :func:`pillarbox.dashboard`.

    Attributes:
        url: the address for a browser, with the token.
    """


class MetricsServer(_Server):
    """A server for Prometheus, as returned by :func:`pillarbox.serve_metrics`.

    Attributes:
        url: the address to scrape.
    """


def dashboard(
    query: StreamingQuery, port: int | None = None, *, host: str | None = None, token: str | None = None
) -> Dashboard:
    """Open the dashboard of this process, and show a query in it.

    It shows plan, epochs, event time, heavy keys, calls, state and failures. A process has one dashboard, and each call
    adds a query. It requires the extra ``pillarbox[dashboard]``, and ends with the process, under Spark Connect with
    the client.

    By default, only this machine has access. Everyone with access sees keys and records: see docs/security.md before
    you listen on another address.

    Args:
        query: as returned by :func:`pillarbox.start`, or by the ``start()`` of its writer.
        port: the port to listen on, 0 for any free port, or None for the open dashboard's, or 8082.
        host: the address to listen on, or None for the open dashboard's, or 127.0.0.1.
        token: the credential for browsers. None: no token on loopback, elsewhere a random token in ``url``.

    Returns:
        The dashboard. Open its ``url`` in a browser.

    Raises:
        ConfigurationError: the token is empty; the dashboard is open with another host, port or token; or Starlette or
            uvicorn is missing.
        ProgramError: the query has no program of pillarbox, or was started by another process.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> print(pillarbox.dashboard(query).url)  # doctest: +SKIP
        http://127.0.0.1:8082/
    """
    if port is not None:
        checked_port(port, "dashboard()")
    checked_token(token, "dashboard()")
    dashboard: Dashboard = needed_tools("dashboard()").dashboard(query, port, host=host, token=token)
    return dashboard


def serve_metrics(query: StreamingQuery, port: int = METRICS_PORT, *, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of a query at ``/metrics``, for Prometheus to scrape.

    Metrics are sums over an operator's subtasks. Counters begin at the query's start, and continue if this process
    starts it again. A process has one server, and each call adds a query. It requires the extra ``pillarbox[metrics]``,
    and ends with the process, under Spark Connect with the client. See docs/monitoring.md for a Grafana board and alert
    rules.

    Args:
        query: as returned by :func:`pillarbox.start`, or by the ``start()`` of its writer.
        port: the port to listen on, or 0 for any free port.
        host: the address to listen on. By default, only this machine has access; "0.0.0.0" is every address.

    Returns:
        The server. Scrape its ``url``.

    Raises:
        ConfigurationError: the port is in use; the server is open on another one; or prometheus-client is missing.
        ProgramError: the query has no program of pillarbox, or was started by another process.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> print(pillarbox.serve_metrics(query).url)  # doctest: +SKIP
        http://127.0.0.1:9250/metrics
    """
    checked_port(port, "serve_metrics()")
    server: MetricsServer = needed_tools("serve_metrics()").serve_metrics(query, port, host=host)
    return server


class QueryCollector:
    """A collector for a ``prometheus_client`` registry, for processes that already serve metrics.

    It has the metrics of :func:`pillarbox.serve_metrics`. Register one collector, and ``add`` further queries.

    Args:
        queries: as returned by :func:`pillarbox.start`.

    Raises:
        ConfigurationError: prometheus-client is missing.
        ProgramError: a query has no program of pillarbox, or was started by another process.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> prometheus_client.REGISTRY.register(pillarbox.QueryCollector(query))  # doctest: +SKIP
    """

    def __init__(self, *queries: StreamingQuery) -> None:
        self._collector: Any = needed_tools("QueryCollector()").query_collector()
        for query in queries:
            self.add(query)

    def add(self, query: StreamingQuery) -> None:
        """Add a query. The counters of a restarted query continue.

        Raises:
            ProgramError: the query has no program of pillarbox, or was started by another process.
        """
        self._collector.add(query)

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics. Called by the registry, in any thread."""
        metrics: Iterator[Metric] = self._collector.collect()
        return metrics

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, for the registry's check of duplicate names."""
        metrics: Iterator[Metric] = self._collector.describe()
        return metrics


def export_otel(query: StreamingQuery, meter_provider: MeterProvider | None = None) -> None:
    """Register a query's metrics with OpenTelemetry, once per query.

    It has the metrics of :func:`pillarbox.serve_metrics`, with dots in their names and UCUM units. It requires the
    extra ``pillarbox[otel]``. Configure metrics, destination and interval in the provider.

    Args:
        query: as returned by :func:`pillarbox.start`, or by the ``start()`` of its writer.
        meter_provider: the provider, or None for the global provider, which the program may set later.

    Raises:
        ConfigurationError: OpenTelemetry is missing.
        ProgramError: the query has no program of pillarbox, or was started by another process; or the provider is not a
            meter provider.

    Example:
        >>> reader = PeriodicExportingMetricReader(OTLPMetricExporter())  # doctest: +SKIP
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> pillarbox.export_otel(query, MeterProvider(metric_readers=[reader]))  # doctest: +SKIP
    """
    needed_tools("export_otel()").export_otel(query, meter_provider)


def record(
    writer: DataStreamWriter,
    directory: str,
    *,
    epoch: int | None = None,
    uid: str | None = None,
    subtask: int | None = None,
    key: str | None = None,
    allow_calls: bool = False,
    limit: int = LIMIT,
    timeout: float = TIMEOUT,
    **options: Any,
) -> str:
    """Record one task of an epoch of a query: its input, its state before the epoch, and its program.

    ``pillarbox replay DIRECTORY`` runs the task again on your machine, without Spark and Java, and stops where it
    failed.

    The sources and earlier levels run again, on a copy of the checkpoint. Nothing is written to the sink or the
    checkpoint. The recording contains the task's records and state, so it is as private as the checkpoint. Requires a
    classic session.

    Args:
        writer: the writer, as for :func:`pillarbox.start`.
        directory: a new folder on the driver's machine.
        epoch: Spark's number of the micro-batch, or None for the micro-batch that failed, or else the last.
        uid: the operator's uid or name, or None for the operator that failed.
        subtask: the subtask's index, or a source's partition.
        key: a key of the subtask, instead of ``subtask``, as text; JSON for several columns. Parsed by the declared
            type of the keys, or by the keys in state.
        allow_calls: repeat calls of asynchronous operators of earlier levels, instead of refusing the epoch. Calls by
            other functions are always repeated.
        limit: maximum size of the task's input, and of the copied state (bytes each). Neither is ever truncated.
        timeout: maximum time for repeating the epoch, up to the task (seconds).
        options: options of the writer's ``start``, such as ``checkpointLocation``.

    Returns:
        The folder.

    Raises:
        CheckpointMismatchError: the epoch or its state no longer exists.
        ConfigurationError: an earlier level would make calls, a limit or the timeout is exceeded, the folder exists, or
            the session is a Spark Connect session.
        ProgramError: the task does not exist, no task is named and no task has failed, or the key is ambiguous.

    Example:
        >>> pillarbox.record(writer, "failed")  # doctest: +SKIP
        'failed'
    """
    return needed_tools("record()").record(
        writer,
        directory,
        epoch=epoch,
        uid=uid,
        subtask=subtask,
        key=key,
        allow_calls=allow_calls,
        limit=limit,
        timeout=timeout,
        **options,
    )
