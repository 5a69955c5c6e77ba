"""Prometheus export: a collector for a registry, and a server for scraping."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.running import monitoring
from pillarbox_tools.addresses import cannot_listen, url_of
from pillarbox_tools.export.exported import ExportedQueries
from pillarbox_tools.export.metric import METRICS, Metric
from pillarbox_tools.export.query_metrics import QueryMetrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.prometheus_name, metric.help, labels=("query", *metric.labels))


class MetricsCollector:
    """A collector for a registry. Error messages name the public function ``method``."""

    def __init__(self, method: str, metrics_of: Callable[[Any], QueryMetrics]) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"{method} needs prometheus-client ({error}): pip install 'pillarbox[metrics]'"
            ) from error
        self.exported = ExportedQueries()
        self._metrics_of = metrics_of

    def add(self, query: Any) -> None:
        self.exported.add(self._metrics_of(query))

    def collect(self) -> Iterator[Family]:
        samples = self.exported.samples()
        for metric in METRICS:
            if metric in samples:
                family = _family(metric)
                for labels, value in samples[metric].items():
                    family.add_metric(labels, value)
                yield family

    def describe(self) -> Iterator[Family]:
        return map(_family, METRICS)


class MetricsServer(monitoring.MetricsServer):
    """A server that Prometheus scrapes. Port 0 means any free port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        collector = MetricsCollector("the metrics server", lambda metrics: metrics)
        from prometheus_client import CollectorRegistry, start_http_server

        self.add = collector.add
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise cannot_listen("the metrics server", "pillarbox.serve_metrics", host, port, error) from error
        self.port: int = self._server.server_port
        self.url: str = url_of(host, self.port, "metrics")

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_lock = threading.Lock()
_open: list[MetricsServer] = []


def open_server(metrics: QueryMetrics, host: str, port: int) -> MetricsServer:
    with _lock:
        _open[:] = [server for server in _open if server.is_open]
        if not _open:
            _open.append(MetricsServer(host, port))
        [server] = _open
        if port not in (0, server.port):
            raise ConfigurationError(
                f"the metrics server of this process is already open on port {server.port}, so it cannot open on port"
                f" {port}: one server exports all queries of a process"
            )
        server.add(metrics)
        return server
