"""Public functions that ``pillarbox_tools`` implements."""

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
    """An open dashboard. :func:`pillarbox.dashboard` returns it.

    Attributes:
        url: the address for a browser, with the token.
    """


class MetricsServer(_Server):
    """A server for Prometheus. :func:`pillarbox.serve_metrics` returns it.

    Attributes:
        url: the address to scrape.
    """


def dashboard(
    query: StreamingQuery, port: int | None = None, *, host: str | None = None, token: str | None = None
) -> Dashboard:
    """Open the dashboard of this process, and show a query in it.

    The dashboard shows the query's plan, epochs, event time, heavy keys, calls, state and failures. A process has one
    dashboard; each call adds a query to it. It requires the extra ``pillarbox[dashboard]``, and closes when this
    process (under Spark Connect, the client) exits.

    By default, only this machine has access. Everyone with access can see keys and records: read docs/security.md
    before you listen on another address.

    Args:
        query: a query from :func:`pillarbox.start`, or from the ``start()`` of its writer.
        port: the port to listen on, or 0 for any free port. By default, the open dashboard's port, or 8082.
        host: the address to listen on. By default, the open dashboard's address, or 127.0.0.1.
        token: the credential for browsers. By default, a loopback address needs no token; for other addresses, ``url``
            contains a random token.

    Raises:
        ConfigurationError: the token is empty, the dashboard is already open with a different host, port or token, or a
            package of the extra is missing.
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
    """Serve a query's metrics at ``/metrics``, for Prometheus to scrape.

    Metrics are sums over an operator's subtasks. Counters start at 0, and continue if this process restarts the query.
    A process has one server; each call adds a query to it. The server requires the extra ``pillarbox[metrics]``, and
    closes when this process (under Spark Connect, the client) exits. See docs/monitoring.md for a Grafana board and
    alert rules.

    Args:
        query: a query from :func:`pillarbox.start`, or from the ``start()`` of its writer.
        port: the port to listen on, or 0 for any free port.
        host: the address to listen on. By default, only this machine has access; with "0.0.0.0", every machine.

    Raises:
        ConfigurationError: the port is in use, the server is already open on another port, or prometheus-client is
            missing.
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
    """A collector for a ``prometheus_client`` registry, in processes that already serve metrics.

    Exports the same metrics as :func:`pillarbox.serve_metrics`. Register one collector, and ``add`` more queries to it.

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
        """Return the current metrics. Thread-safe."""
        metrics: Iterator[Metric] = self._collector.collect()
        return metrics

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, so that the registry can detect duplicate names."""
        metrics: Iterator[Metric] = self._collector.describe()
        return metrics


def export_otel(query: StreamingQuery, meter_provider: MeterProvider | None = None) -> None:
    """Register a query's metrics with OpenTelemetry. Call it once per query.

    Exports the same metrics as :func:`pillarbox.serve_metrics`, with dots in their names and UCUM units. Requires the
    extra ``pillarbox[otel]``. The provider selects metrics, destination and interval.

    Args:
        query: a query from :func:`pillarbox.start`, or from the ``start()`` of its writer.
        meter_provider: the provider, or None for the global provider, which may be set later.

    Raises:
        ConfigurationError: OpenTelemetry is missing.
        ProgramError: the query has no program of pillarbox, the query was started by another process, or
            ``meter_provider`` is not a meter provider.

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
    """Record a task in one epoch: its program, its state before the epoch, and its input.

    ``pillarbox replay DIRECTORY`` then runs the task again on your machine, without Spark and Java, and stops at its
    failure.

    To get the input, this runs sources and earlier operators again, on a copy of the checkpoint. It does not write to
    the sink or the checkpoint. The recording contains records and state, so protect it like the checkpoint. Requires a
    classic session.

    Args:
        writer: as in :func:`pillarbox.start`.
        directory: a new folder on the driver's machine.
        epoch: Spark's number of the micro-batch. By default, the failed micro-batch, or else the last one.
        uid: the operator's uid or name. By default, the failed operator.
        subtask: the subtask's index; for a source, the partition.
        key: instead of ``subtask``, one of its keys as text (JSON for a key of several columns). The text is parsed
            as the declared key type. If no type is declared, it is compared with the keys in state.
        allow_calls: whether to repeat the calls of earlier async operators. If False, an epoch with such calls is
            refused. Other functions' calls are always repeated.
        limit: maximum size (bytes) of the task's input, and of the copied state.
        timeout: maximum time to run the earlier operators (seconds).
        options: options of the writer's ``start``, such as ``checkpointLocation``.

    Returns:
        The folder.

    Raises:
        CheckpointMismatchError: the epoch or its state no longer exists.
        ConfigurationError: an earlier operator would make calls, ``limit`` or ``timeout`` is exceeded, the folder
            exists, or this is a Spark Connect session.
        ProgramError: the task does not exist, the key is ambiguous, or no task was specified and no task has failed.

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
