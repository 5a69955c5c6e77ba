"""OpenTelemetry export: an observable instrument for each metric in the user's meter provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pillarbox
from pillarbox._errors import ConfigurationError, ProgramError, shorten
from pillarbox_tools.export.exported import ExportedQueries
from pillarbox_tools.export.metric import METRICS, Metric
from pillarbox_tools.export.query_metrics import QueryMetrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_lock = threading.Lock()
# Queries by provider, or by the API for the global provider. An instrument can be created only once.
_of_providers: WeakKeyDictionary[Any, ExportedQueries] = WeakKeyDictionary()


def observe(query: QueryMetrics, provider: MeterProvider | None) -> None:
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ConfigurationError(
            f"export_otel() needs OpenTelemetry ({error}): pip install 'pillarbox[otel]'"
        ) from error
    if provider is not None and not hasattr(provider, "get_meter"):
        raise ProgramError(
            "export_otel(): meter_provider= must be an OpenTelemetry MeterProvider, or None for the global one, not"
            f" {shorten(provider)}"
        )
    # The API's meter switches to a provider that the program sets later.
    source: Any = metrics if provider in (None, metrics.get_meter_provider()) else provider
    with _lock:
        if source not in _of_providers:
            _of_providers[source] = _instrumented(source.get_meter("pillarbox", pillarbox.__version__))
        _of_providers[source].add(query)


def _instrumented(meter: Any) -> ExportedQueries:
    exported = ExportedQueries()
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(metric.otel_name, callbacks=[_observer(exported, metric)], unit=metric.unit, description=metric.help)
    return exported


def _observer(exported: ExportedQueries, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
    from opentelemetry.metrics import Observation

    names = ("query", *metric.labels)

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for labels, value in exported.samples().get(metric, {}).items():
            yield Observation(value, dict(zip(names, labels)))

    return observe
