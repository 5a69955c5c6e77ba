"""Metrics of a real query in a real Prometheus, with board and rules, and over OTLP."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import ConfigurationError
from pillarbox_tools.export.metric import METRICS
from tests.export.expressions import ALERTS, of_alerts, of_board
from tests.see.everything import everything, some_payments
from tests.see.prometheus import Prometheus, prometheus, wait_until
from tests.see.queries import Inbox, counts, started

pytestmark = [
    pytest.mark.skipif("PILLARBOX_SEE" not in os.environ, reason="takes Prometheus: make test-see runs it"),
    pytest.mark.spark,
    pytest.mark.slow("Prometheus looks each second"),
    pytest.mark.timeout(900),
]

NAME = "payments, scored"
# What only Kafka and the like tell, and what holds for an instant.
MAY_BE_EMPTY = {"pillarbox_source_backlog", "pillarbox_tasks_unfinished"}


def of_panel(expression: str) -> str:
    for variable, value in (("$__rate_interval", "1m"), ("$__range", "10m"), ("$query", ".*"), ("$operator", ".*")):
        expression = expression.replace(variable, value)
    return expression


def test_prometheus_reads_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(of_alerts())} rules found" in done.stdout


def test_the_board_has_data_and_alerts_fire(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "payments")
    inbox.put(*some_payments(0))
    query = everything(spark, inbox, tmp_path / "checkpoint", NAME)
    try:
        with pillarbox.serve_metrics(query, port=0) as server:
            _check_text(server.url)
            assert pillarbox.serve_metrics(query, port=0) is pillarbox.serve_metrics(query, port=server.port) is server
            with pytest.raises(
                ConfigurationError, match=f"is already open on port {server.port}, so it cannot open on port 1: "
            ):
                pillarbox.serve_metrics(query, port=1)
            folder = tmp_path / "prometheus"
            folder.mkdir()
            with prometheus(folder, server.url, ALERTS) as watching:
                feed = _Feed(inbox, watching)
                empty = wait_until(lambda: _some_data(watching, feed), "data of each panel")
                assert empty == MAY_BE_EMPTY
                expected = {"PillarboxEventTimeBehind", "PillarboxLateRecords", "PillarboxDeadLetters"}
                expected |= {"PillarboxRequestsFail"}
                wait_until(lambda: feed() and expected <= _names(watching), "alerts")
                _check_alerts(watching)
                query.stop()
                [(labels, value)] = wait_until(
                    lambda: [sample for sample in watching.query("pillarbox_query_up") if sample[1] == 0], "the end"
                )
                assert (labels["query"], value) == (NAME, 0)
                assert watching.query("pillarbox_keys") == []
                server.close()
                wait_until(lambda: "PillarboxQueryGone" in _names(watching), "the alert of a query that is gone")
    finally:
        query.stop()


class _Feed:
    """Adds a file of payments to an inbox when Prometheus shows that the previous file was read."""

    def __init__(self, inbox: Inbox, watching: Prometheus) -> None:
        self._inbox = inbox
        self._watching = watching
        self._files = 1
        self._rows = len(some_payments(0))

    def __call__(self) -> bool:
        seen = self._watching.query("pillarbox_rows_in_total")
        if seen and seen[0][1] >= self._rows:
            payments = some_payments(100 * self._files)
            self._files += 1
            self._rows += len(payments)
            self._inbox.put(*payments)
        return True


def _check_text(url: str) -> None:
    with urlopen(url) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), text


def _some_data(watching: Prometheus, feed: Callable[[], bool]) -> set[str] | None:
    feed()
    empty = {
        metric.prometheus_name
        for panel in of_board()
        if not watching.query(of_panel(panel.text))
        for metric in METRICS
        if metric.prometheus_name in panel.text and metric.prometheus_name != "pillarbox_epochs_total"
    }
    return empty if empty <= MAY_BE_EMPTY else None


def _names(watching: Prometheus) -> set[str]:
    return {alert["alertname"] for alert in watching.firing()}


def _check_alerts(watching: Prometheus) -> None:
    rules = watching.rules()
    assert rules.keys() == {alert.place for alert in of_alerts()}
    assert [(name, rule["lastError"]) for name, rule in rules.items() if rule.get("lastError")] == []
    [late] = [alert for alert in watching.firing() if alert["alertname"] == "PillarboxLateRecords"]
    assert (late["query"], late["operator"], late["severity"]) == (NAME, "ordered", "warning")
    # "<error expanding template>" or "<no value>" would stand where Prometheus does not know a part of a message.
    for rule in rules.values():
        for alert in rule["alerts"]:
            assert all("<" not in text for text in alert["annotations"].values())


def test_a_query_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    inbox, checkpoint = Inbox(tmp_path / "payments"), tmp_path / "checkpoint"
    inbox.put(("ann", 1, 1), ("bob", -1, 2))
    registry = CollectorRegistry()
    query = started(counts(spark, inbox), checkpoint, "fails")
    collector = pillarbox.QueryCollector(query)
    registry.register(collector)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"pillarbox_query_{name}", {"query": "fails"})

    assert (value("up"), value("failures_total"), value("starts_total")) == (0, 1, 1)
    (inbox.folder / "000001.json").unlink()
    inbox.put(("ann", 1, 1))
    # Its writer's own start() has no hooks for the query, so the collector follows it.
    writer = counts(spark, inbox).to_dataframe("card STRING, seen LONG").writeStream.format("noop").queryName("fails")
    query = writer.option("checkpointLocation", str(tmp_path / "another checkpoint")).start()
    try:
        collector.add(query)
        query.processAllAvailable()
        wait_until(
            lambda: registry.get_sample_value("pillarbox_records_in_total", {"query": "fails", "operator": "count"}),
            "its records",
        )
        assert (value("up"), value("failures_total"), value("starts_total")) == (1, 1, 2)
        assert b'pillarbox_keys{operator="count",query="fails"} 1.0' in generate_latest(registry)
    finally:
        query.stop()


@contextmanager
def otlp_receiver() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    came: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/metrics", came
        finally:
            server.shutdown()


def test_metrics_by_otlp(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "payments")
    inbox.put(*((f"c{number % 7}", 1, number) for number in range(70)))
    with otlp_receiver() as (address, came):
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(address), export_interval_millis=3_600_000)
        provider = MeterProvider(metric_readers=[reader])
        query = started(counts(spark, inbox), tmp_path / "checkpoint", "by OTLP")
        try:
            pillarbox.export_otel(query, provider)
            query.processAllAvailable()

            def sent() -> dict[str, Any]:
                provider.force_flush()
                [resource] = came[-1].resource_metrics
                [scope] = resource.scope_metrics
                assert scope.scope.name == "pillarbox"
                results = {metric.name: metric for metric in scope.metrics}
                return results if "pillarbox.records.in" in results else {}

            metrics = wait_until(sent, "an epoch")
            count = metrics["pillarbox.records.in"]
            assert (count.unit, count.sum.is_monotonic) == ("{record}", True)
            points = {
                tuple(
                    sorted((attribute.key, attribute.value.string_value) for attribute in point.attributes)
                ): point.as_double
                for point in count.sum.data_points
            }
            assert points[("operator", "count"), ("query", "by OTLP")] == 70
            state = metrics["pillarbox.state.size"]
            assert (state.unit, state.WhichOneof("data")) == ("By", "gauge")
            assert metrics.keys() < {metric.otel_name for metric in METRICS}
        finally:
            query.stop()
            provider.shutdown()
