"""Observations of queries by an OpenTelemetry meter provider."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum

import pillarbox
from pillarbox._errors import ConfigurationError, ProgramError
from pillarbox_tools.export.exported import ExportedQueries
from pillarbox_tools.export.metric import METRICS
from pillarbox_tools.export.otel import observe
from pillarbox_tools.export.query_metrics import QueryMetrics
from pillarbox_tools.model.snapshot import SnapshotRun
from tests.model.made import START, keyed, model, plan, progress, query_model, source


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    [scope] = data.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("pillarbox", pillarbox.__version__)
    return {metric.name: metric for metric in scope.metrics}


def test_a_provider_observes_a_query() -> None:
    query, reader = model(), InMemoryMetricReader()
    metrics = QueryMetrics(query)
    observe(metrics, MeterProvider(metric_readers=[reader]))
    query.progressed(progress(1, source(records_in=5), keyed(busy_ms=250, state_bytes=9, gauges={"map-3.g": 2.5})))
    document = read(reader)
    busy = document["pillarbox.busy.time"]
    assert (busy.unit, type(busy.data), busy.data.is_monotonic) == ("s", Sum, True)
    points = {point.attributes["operator"]: point.value for point in busy.data.data_points}
    assert points == {"count": 0.25, "payments": 0}
    assert (document["pillarbox.state.size"].unit, type(document["pillarbox.state.size"].data)) == ("By", Gauge)
    [gauge] = document["pillarbox.user.gauge.max"].data.data_points
    assert (gauge.value, gauge.attributes) == (2.5, {"query": "counts", "operator": "map-3", "name": "g"})
    query.progressed(progress(2, keyed(busy_ms=500)))
    points = {
        point.attributes["operator"]: point.value for point in read(reader)["pillarbox.busy.time"].data.data_points
    }
    assert points == {"count": 0.75, "payments": 0}


def test_it_has_the_samples_of_prometheus() -> None:
    query, reader = model(), InMemoryMetricReader()
    metrics = QueryMetrics(query)
    observe(metrics, MeterProvider(metric_readers=[reader]))
    query.progressed(progress(1, source(), keyed(watermark=START, counters={"map-3.x": 1, "count.dead_letters": 2})))
    exported = ExportedQueries()
    exported.add(metrics)
    expected = {
        (metric.otel_name, tuple(zip(("query", *metric.labels), labels))): value
        for metric, samples in exported.samples().items()
        for labels, value in samples.items()
    }
    document = {
        (name, tuple(point.attributes.items())): point.value
        for name, metric in read(reader).items()
        for point in metric.data.data_points
    }
    assert document == expected
    assert {name for name, _ in document} < {metric.otel_name for metric in METRICS}


def test_one_provider_observes_several_queries(caplog: pytest.LogCaptureFixture) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    for name in ("one", "two"):
        query = query_model(name, name, "", plan(), SnapshotRun("r", START), clock=lambda: START)
        observe(QueryMetrics(query), provider)
    ups = {point.attributes["query"]: point.value for point in read(reader)["pillarbox.query.up"].data.data_points}
    assert ups == {"one": 1, "two": 1}
    assert caplog.messages == []  # such as that an instrument is there already


def test_the_global_provider_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    observe(QueryMetrics(model()), None)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    set_meter_provider(provider)
    observe(QueryMetrics(model(clock=lambda: START)), provider)  # which is the global one
    assert len(read(reader)["pillarbox.query.up"].data.data_points) == 1


def test_objects_that_are_no_providers() -> None:
    with pytest.raises(
        ProgramError, match=r"^export_otel\(\): meter_provider= must be an OpenTelemetry MeterProvider.*, not 'otel'$"
    ):
        observe(QueryMetrics(model()), "otel")  # type: ignore[arg-type]


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"needs OpenTelemetry .*: pip install 'pillarbox\[otel\]'$"):
        observe(QueryMetrics(model()), None)
