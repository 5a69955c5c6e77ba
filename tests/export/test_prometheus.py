from __future__ import annotations

import re
import socket
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import pillarbox
from pillarbox._errors import ConfigurationError, ProgramError
from pillarbox_tools.export.metric import METRICS
from pillarbox_tools.export.prometheus import MetricsCollector, MetricsServer
from pillarbox_tools.export.query_metrics import QueryMetrics
from tests.model.made import START, keyed, model, progress, source


def collector(*ledgers: QueryMetrics) -> MetricsCollector:
    result = MetricsCollector("the test", lambda metrics: metrics)
    for ledger in ledgers:
        result.add(ledger)
    return result


def scraped(registry: CollectorRegistry) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def test_a_registry_tells_of_a_query() -> None:
    query = model()
    registry = CollectorRegistry()
    registry.register(collector(QueryMetrics(query)))
    query.progressed(progress(1, source(records_in=5), keyed(busy_ms=250, watermark=START - 1000, state_bytes=9)))
    result = scraped(registry)
    [sample] = [
        sample for sample in result["pillarbox_busy_time_seconds"].samples if sample.labels["operator"] == "count"
    ]
    assert (sample.name, sample.value) == ("pillarbox_busy_time_seconds_total", 0.25)
    assert sample.labels == {"query": "counts", "operator": "count"}
    assert result["pillarbox_busy_time_seconds"].type == "counter"
    assert result["pillarbox_state_size_bytes"].type == "gauge"
    assert result["pillarbox_query_up"].documentation == "1 while the query runs, 0 when it has ended."
    assert result["pillarbox_watermark_timestamp_seconds"].samples[0].value == (START - 1000) / 1000


@given(st.text(), st.text())
def test_any_name_of_a_metric_can_be_scraped(operator: str, name: str) -> None:
    query = model()
    registry = CollectorRegistry()
    registry.register(collector(QueryMetrics(query)))
    query.progressed(progress(1, keyed(counters={f"map-3.{name}!": 7})))
    [sample] = scraped(registry)["pillarbox_user_count"].samples
    assert (sample.labels["name"], sample.value) == (f"{name}!", 7)


def test_a_registry_refuses_a_second_collector() -> None:
    """Prometheus rejects a response that contains a metric twice."""
    registry = CollectorRegistry()
    registry.register(collector(QueryMetrics(model())))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector(QueryMetrics(model())))


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.prometheus_name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert len({metric.otel_name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"pillarbox(_[a-z]+)+", metric.prometheus_name)
        assert metric.prometheus_name.endswith("_total") == (metric.kind == "counter")
        assert ("_seconds" in metric.prometheus_name, "_bytes" in metric.prometheus_name) == (
            metric.unit == "s",
            metric.unit == "By",
        )
        assert metric.help.endswith(".")
        assert "query" not in metric.labels


def test_a_server_says_so_if_it_cannot_listen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        with pytest.raises(
            ConfigurationError,
            match=rf"^the metrics server cannot listen on 127.0.0.1:{port} \(Address already in use\): choose"
            r" another port, or any free port by pillarbox.serve_metrics\(query, port=0\)$",
        ):
            MetricsServer(port=port)


@pytest.mark.parametrize("what", [MetricsServer, pillarbox.QueryCollector])
def test_without_the_client(what: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"needs prometheus-client .*: pip install 'pillarbox\[metrics\]'$"):
        what()


def test_arguments_that_are_no_queries() -> None:
    with pytest.raises(ProgramError, match=r"^serve_metrics\(\) takes a query that start\(\) returned, not 5$"):
        pillarbox.serve_metrics(5)  # type: ignore[arg-type]
    with pytest.raises(
        ProgramError, match=r"^serve_metrics\(\): a port must be a whole number from 0 to 65535, not 'x'$"
    ):
        pillarbox.serve_metrics(5, port="x")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"^QueryCollector takes a query that start\(\) returned, not 5$"):
        pillarbox.QueryCollector(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"^export_otel\(\) takes a query that start\(\) returned, not 5$"):
        pillarbox.export_otel(5)  # type: ignore[arg-type]
