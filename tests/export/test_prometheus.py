"""What a registry of prometheus-client makes of queries, and the server's errors."""

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
from pillarbox_tools.export.ledger import Ledger
from pillarbox_tools.export.metric import METRICS
from pillarbox_tools.export.prometheus import Collector, MetricsServer
from tests.model.made import START, keyed, model, progress, source


def collector(*ledgers: Ledger) -> Collector:
    """A collector as QueryCollector has one."""
    found = Collector("the test", lambda ledger: ledger)
    for each in ledgers:
        found.add(each)
    return found


def scraped(registry: CollectorRegistry) -> dict[str, Any]:
    return {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}


def test_a_registry_tells_of_a_query() -> None:
    query = model()
    registry = CollectorRegistry()
    registry.register(collector(Ledger(query)))
    query.progressed(progress(1, source(records_in=5), keyed(busy_ms=250, watermark=START - 1000, state_bytes=9)))
    found = scraped(registry)
    [sample] = [each for each in found["pillarbox_busy_time_seconds"].samples if each.labels["operator"] == "count"]
    assert (sample.name, sample.value) == ("pillarbox_busy_time_seconds_total", 0.25)
    assert sample.labels == {"query": "counts", "operator": "count"}
    assert found["pillarbox_busy_time_seconds"].type == "counter"
    assert found["pillarbox_state_size_bytes"].type == "gauge"
    assert found["pillarbox_query_up"].documentation == "1 while the query runs, 0 when it has ended."
    assert found["pillarbox_watermark_timestamp_seconds"].samples[0].value == (START - 1000) / 1000


@given(st.text(), st.text())
def test_any_name_of_a_metric_can_be_scraped(operator: str, name: str) -> None:
    query = model()
    registry = CollectorRegistry()
    registry.register(collector(Ledger(query)))
    query.progressed(progress(1, keyed(counters={f"map-3.{name}!": 7})))
    [sample] = scraped(registry)["pillarbox_user_count"].samples
    assert (sample.labels["name"], sample.value) == (f"{name}!", 7)


def test_a_registry_refuses_a_second_collector() -> None:
    """Else each metric would be in the text twice, which Prometheus does not read."""
    registry = CollectorRegistry()
    registry.register(collector(Ledger(model())))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector(Ledger(model())))


def test_names_are_as_prometheus_wants_them() -> None:
    names = [each.prometheus_name for each in METRICS]
    assert len(set(names)) == len(names)
    assert len({each.otel_name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert re.fullmatch(r"pillarbox(_[a-z]+)+", each.prometheus_name)
        assert each.prometheus_name.endswith("_total") == (each.kind == "counter")
        assert ("_seconds" in each.prometheus_name, "_bytes" in each.prometheus_name) == (
            each.unit == "s",
            each.unit == "By",
        )
        assert each.help.endswith(".")
        assert "query" not in each.labels


def test_a_server_says_so_if_it_cannot_listen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError,
            match=rf"^the server of metrics cannot listen on 127.0.0.1:{port} \(Address already in use\): choose"
            r" another port, as in pillarbox.serve_metrics\(query, port=0\), which takes any that is free$",
        ):
            MetricsServer(port=port)


@pytest.mark.parametrize("what", [MetricsServer, pillarbox.QueryCollector])
def test_without_the_client(what: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"needs prometheus-client .*: pip install 'pillarbox\[metrics\]'$"):
        what()


def test_what_is_no_query() -> None:
    with pytest.raises(ProgramError, match=r"^serve_metrics\(\) takes a query, as start\(\) returned it, not 5$"):
        pillarbox.serve_metrics(5)  # type: ignore[arg-type]
    with pytest.raises(
        ProgramError, match=r"^serve_metrics\(\): a port must be a whole number from 0 to 65535, not 'x'$"
    ):
        pillarbox.serve_metrics(5, port="x")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"^QueryCollector takes a query, as start\(\) returned it, not 5$"):
        pillarbox.QueryCollector(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"^export_otel\(\) takes a query, as start\(\) returned it, not 5$"):
        pillarbox.export_otel(5)  # type: ignore[arg-type]
