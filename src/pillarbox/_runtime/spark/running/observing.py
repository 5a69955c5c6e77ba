"""The public methods that ``pillarbox_tools`` implements: here is what they promise."""

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

#: Flink's reporter has 9249.
METRICS_PORT = 9250
LIMIT = 1 << 30
TIMEOUT = 600.0


class _Server:
    """A server in this process.

    Attributes:
        url: its address.
        port: the port that it listens on.
    """

    url: str
    port: int

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the server."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Dashboard(_Server):
    """A dashboard that is open, as :func:`pillarbox.dashboard` returns it.

    Attributes:
        url: where to open it in a browser, with the token.
        port: the port that it listens on.
    """


class MetricsServer(_Server):
    """A server that Prometheus scrapes, as :func:`pillarbox.serve_metrics` returns it.

    Attributes:
        url: what to scrape.
        port: the port that it listens on.
    """


def dashboard(
    query: StreamingQuery, port: int | None = None, *, host: str | None = None, token: str | None = None
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
        port: the port to listen on; 0: any that is free. None: the one of the open dashboard, or else 8082.
        host: the address to listen on. None: the one of the open dashboard, or else 127.0.0.1.
        token: what a browser must know, any text; None: nothing on loopback, and a random text elsewhere, a part of
            ``url``.

    Returns:
        The dashboard: ``url`` is where to open it, and ``close()`` closes it.

    Raises:
        ConfigurationError: the token is empty; the dashboard is open with another host, port or token; or Starlette or
            uvicorn is missing.
        ProgramError: it is no query with a program of pillarbox, or another process has started it.

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
    server: MetricsServer = needed_tools("serve_metrics()").serve_metrics(query, port, host=host)
    return server


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
        self._collector: Any = needed_tools("QueryCollector()").query_collector()
        for query in queries:
            self.add(query)

    def add(self, query: StreamingQuery) -> None:
        """Tell of a query, too; a query that was started again continues its counters.

        Raises:
            ProgramError: it is no query with a program of pillarbox, or another process has started it.
        """
        self._collector.add(query)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now. The registry calls it, in any thread."""
        metrics: Iterator[Metric] = self._collector.collect()
        return metrics

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples: the registry compares their names with those that it has."""
        metrics: Iterator[Metric] = self._collector.describe()
        return metrics


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

    ``pillarbox replay DIRECTORY`` runs the task again on your desk, without Spark and Java, and stops where it failed.
    By default the task is recorded that made the query fail.

    The sources are read again between the offsets of the epoch, and earlier levels run again from the state that they
    had before it, on a copy of the checkpoint: nothing is written to the sink or to the checkpoint. The recording holds
    records and state of the task, so it is as private as the checkpoint. It takes a classic session.

    Args:
        writer: the writer that :func:`pillarbox.start` takes: the checkpoint holds no program.
        directory: a folder on the driver's machine for the recording, which must not exist.
        epoch: Spark's number of the micro-batch; None: the micro-batch that failed, or else the last one.
        uid: the uid of the operator whose task to record, or its name; None: the operator that failed.
        subtask: which of its subtasks; of a source, the partition.
        key: instead of ``subtask``, the subtask that has this key, as text; JSON for several columns. It is read by the
            declared type of the keys, or by the keys in state.
        allow_calls: make the calls of asynchronous operators of earlier levels again; else an epoch with them is
            refused. Calls that other functions of earlier levels make by themselves are made again in any case.
        limit: how large the input of the task may be, and the state that is copied (bytes each); never is one cut.
        timeout: how long the epoch may take to run again, up to the task (seconds).
        options: as of the writer's ``start``, such as ``checkpointLocation``.

    Returns:
        The folder.

    Raises:
        CheckpointMismatchError: the epoch or its state no longer exists.
        ConfigurationError: an earlier level would make calls, a limit or the timeout is exceeded, the folder exists, or
            the session is one of Spark Connect.
        ProgramError: there is no such task, no task has failed and none is named, or the key may be several keys.

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
