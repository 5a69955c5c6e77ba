"""Exporters of the metrics of queries: a server for Prometheus, a collector for its client, and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pillarbox._export.exported import Exported
from pillarbox._export.otel import observe
from pillarbox._export.prometheus import MetricsServer, check_client, described, families, open_server
from pillarbox._graph.dashboard_place import checked_port
from pillarbox._runtime.spark.running.following import watched_query

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.streaming.query import StreamingQuery

#: Flink's reporter has 9249.
DEFAULT_PORT = 9250


def serve_metrics(query: StreamingQuery, port: int = DEFAULT_PORT, *, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of a query at ``/metrics``, for Prometheus to scrape.

    They are sums over the subtasks of an operator, so their number does not depend on subtasks and keys. Counters count
    from the start of the query, and continue when this process starts the query again. One server has the metrics of
    all queries of a process: a second call adds a query to it. It needs the extra ``pillarbox[metrics]``, and ends with
    the process. Under Spark Connect it runs in the client. See docs/monitoring.md for a Grafana board and alert rules.

    Args:
        query: as :func:`pillarbox.start` has returned it, or the ``start()`` of its writer.
        port: the port to listen on; 0: any that is free.
        host: the address to listen on: by default, only this machine can ask; "0.0.0.0": whoever reaches the machine.

    Returns:
        The server: ``url`` is what to scrape, and ``close()`` closes it.

    Raises:
        ConfigurationError: the port is taken; the server is open on another one; or prometheus-client is missing.
        ProgramError: it is no query with a program of pillarbox, or another process has started it.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> print(pillarbox.serve_metrics(query).url)  # doctest: +SKIP
        http://127.0.0.1:9250/metrics
    """
    checked_port(port, "serve_metrics()")
    return open_server(watched_query(query, "serve_metrics()").ledger, host, port)


class QueryCollector:
    """A collector for a registry of ``prometheus_client``, where the process serves metrics of its own already.

    It has the metrics of :func:`pillarbox.serve_metrics`. A registry takes one collector: ``add`` adds queries to it.

    Args:
        queries: as :func:`pillarbox.start` has returned them.

    Raises:
        ConfigurationError: prometheus-client is missing.
        ProgramError: one is no query with a program of pillarbox, or another process has started it.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> prometheus_client.REGISTRY.register(pillarbox.QueryCollector(query))  # doctest: +SKIP
    """

    def __init__(self, *queries: StreamingQuery) -> None:
        check_client("QueryCollector()")
        self._exported = Exported()
        for query in queries:
            self.add(query)

    def add(self, query: StreamingQuery) -> None:
        """Tell of a query, too; a query that was started again continues its counters.

        Raises:
            ProgramError: it is no query with a program of pillarbox, or another process has started it.
        """
        self._exported.add(watched_query(query, "QueryCollector").ledger)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now. The registry calls it, in any thread."""
        return families(self._exported)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples: the registry compares their names with those that it has."""
        return described()


def export_otel(query: StreamingQuery, meter_provider: MeterProvider | None = None) -> None:
    """Let OpenTelemetry observe the metrics of a query: a meter provider's readers and exporters send them.

    It has the metrics of :func:`pillarbox.serve_metrics`, with dots in their names and the units of UCUM. It needs the
    extra ``pillarbox[otel]``. Call it once for each query; what the provider exports, where to and how often is yours
    to set.

    Args:
        query: as :func:`pillarbox.start` has returned it, or the ``start()`` of its writer.
        meter_provider: the provider; None: the global one, which the program may also set later.

    Raises:
        ConfigurationError: OpenTelemetry is missing.
        ProgramError: it is no query with a program of pillarbox, or another process has started it; or no provider.

    Example:
        >>> reader = PeriodicExportingMetricReader(OTLPMetricExporter())  # doctest: +SKIP
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> pillarbox.export_otel(query, MeterProvider(metric_readers=[reader]))  # doctest: +SKIP
    """
    observe(watched_query(query, "export_otel()").ledger, meter_provider)
