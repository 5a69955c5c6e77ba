"""Gives each query of a metrics exporter a unique label."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pillarbox_tools.export.metric import FAILURES, STARTS, Metric
from pillarbox_tools.export.query_metrics import QueryMetrics, Values

_MOST_ENDED = 20
_MOST_SUMS = 2_000

#: Values in the metric's unit, by metric and label values. The first label is the query's.
Samples = Mapping[Metric, Mapping[tuple[str, ...], float]]


class _ExportedQuery:
    """The runs of a query, exported under one label."""

    def __init__(self, metrics: QueryMetrics) -> None:
        self.metrics = metrics
        self._earlier: list[QueryMetrics] = []
        # Counts starts in this process, because the checkpoint's history may be incomplete or missing.
        self._starts, self._failures = 1, 0
        self._sums: Values = {}

    def follow_with(self, metrics: QueryMetrics) -> None:
        self._earlier.append(self.metrics)
        self._starts += 1
        self.metrics = metrics

    def values(self) -> Values:
        for earlier in [metrics for metrics in self._earlier if metrics.has_ended]:
            _add(self._sums, earlier.values())
            self._earlier.remove(earlier)
            self._failures += earlier.has_failed
        values = self.metrics.values()
        if len(self._sums) > _MOST_SUMS:
            # Runs may differ in operators, sources and metric names.
            self._sums = {series: sum_ for series, sum_ in self._sums.items() if series in values}
        for earlier_values in (self._sums, *(earlier.values() for earlier in self._earlier)):
            _add(values, earlier_values)
        failures = self._failures + self.metrics.has_failed
        for metric, count in ((STARTS, self._starts), (FAILURES, failures)):
            values[metric, ()] = max(values[metric, ()], count)
        return values


def _add(sums: Values, more: Values) -> None:
    for series, value in more.items():
        if series[0].kind == "counter" and series[0] not in (STARTS, FAILURES):
            sums[series] = sums.get(series, 0) + value


class ExportedQueries:
    """The queries of an exporter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _ExportedQuery] = {}

    def add(self, metrics: QueryMetrics) -> None:
        """Export a query. A new run of a query continues its counters.

        The label is the query's name, or its id if it has no name. If another running query has the same name, the
        label contains name and id.
        """
        with self._lock:
            label = self._label(metrics)
            present = self._queries.get(label)
            if present is None:
                self._queries[label] = _ExportedQuery(metrics)
            elif present.metrics is not metrics:
                present.follow_with(metrics)
            ended = [label for label, exported in self._queries.items() if exported.metrics.has_ended]
            for old in ended[: max(0, len(ended) - _MOST_ENDED)]:
                del self._queries[old]

    def _label(self, metrics: QueryMetrics) -> str:
        label = metrics.name or metrics.id
        for name, exported in self._queries.items():
            if exported.metrics.id == metrics.id:
                return name
        present = self._queries.get(label)
        return label if present is None or present.metrics.has_ended else f"{label} {metrics.id}"

    def samples(self) -> Samples:
        samples: dict[Metric, dict[tuple[str, ...], float]] = {}
        with self._lock:
            for label, exported in self._queries.items():
                for (metric, labels), value in exported.values().items():
                    label_values = label, *labels
                    samples.setdefault(metric, {})[label_values] = value / metric.divisor
        return samples
