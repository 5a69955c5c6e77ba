"""The queries of one exporter, each with a unique label."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pillarbox_tools.export.ledger import Ledger, Standing, Values
from pillarbox_tools.export.metric import FAILURES, STARTS, Metric

# Ended queries that stay exported.
_MOST_ENDED = 20
# Maximum number of stored counters of ended runs, including labels that the newest run does not have.
_MOST_SUMS = 2_000

#: Values by metric and label values, in the metric's unit. The first label is the query's.
Samples = Mapping[Metric, Mapping[tuple[str, ...], float]]


class _Told:
    """The runs of a query under one label: counters continue over its runs."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._earlier: list[Ledger] = []
        # In this process: the checkpoint's history may be shorter, or missing.
        self._starts, self._failures = 1, 0
        self._sums: Values = {}

    def follow_with(self, ledger: Ledger) -> None:
        self._earlier.append(self.ledger)
        self._starts += 1
        self.ledger = ledger

    def standing(self) -> Standing:
        """Return the newest run's gauges, and the counters of all runs."""
        for earlier in [ledger for ledger in self._earlier if ledger.has_ended]:
            _add(self._sums, earlier.standing().counters)
            self._earlier.remove(earlier)
            self._failures += earlier.has_failed
        values = self.ledger.standing()
        if len(self._sums) > _MOST_SUMS:
            # Each run had other operators, sources or metric names.
            self._sums = {series: sum_ for series, sum_ in self._sums.items() if series in values.counters}
        for counters in (self._sums, *(earlier.standing().counters for earlier in self._earlier)):
            _add(values.counters, counters)
        failures = self._failures + self.ledger.has_failed
        for metric, count in ((STARTS, self._starts), (FAILURES, failures)):
            values.counters[metric, ()] = max(values.counters[metric, ()], count)
        return values


# Counters that cover all runs already, by the query's history.
_OF_ALL_RUNS = {(STARTS, ()), (FAILURES, ())}


def _add(sums: Values, more: Values) -> None:
    for series, value in more.items():
        if series not in _OF_ALL_RUNS:
            sums[series] = sums.get(series, 0) + value


class Exported:
    """The queries of an exporter. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}

    def add(self, ledger: Ledger) -> None:
        """Export a query. A new run of the same query continues its counters.

        Its label is its name, or its id if it has no name; both, if another running query has the name.
        """
        with self._lock:
            label = self._label(ledger)
            present = self._told.get(label)
            if present is None:
                self._told[label] = _Told(ledger)
            elif present.ledger is not ledger:
                present.follow_with(ledger)
            ended = [label for label, exported in self._told.items() if exported.ledger.has_ended]
            for old in ended[: max(0, len(ended) - _MOST_ENDED)]:
                del self._told[old]

    def _label(self, ledger: Ledger) -> str:
        label = ledger.name or ledger.id
        for name, exported in self._told.items():
            if exported.ledger.id == ledger.id:
                return name
        present = self._told.get(label)
        return label if present is None or present.ledger.has_ended else f"{label} {ledger.id}"

    def samples(self) -> Samples:
        samples: dict[Metric, dict[tuple[str, ...], float]] = {}
        with self._lock:
            for label, exported in self._told.items():
                standing = exported.standing()
                for (metric, labels), value in [*standing.counters.items(), *standing.gauges.items()]:
                    label_values = label, *labels
                    samples.setdefault(metric, {})[label_values] = value / metric.divisor
        return samples
