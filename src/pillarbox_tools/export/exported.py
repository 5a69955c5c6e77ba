"""The queries that one exporter tells of, each under a name of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pillarbox_tools.export.ledger import Ledger, Standing, Values
from pillarbox_tools.export.metric import FAILURES, STARTS, Metric

# Queries that have ended are told of until there are more than so many.
_MOST_ENDED = 20
# Counters of runs that have ended are kept, also of labels that the newest run does not have, until there are more.
_MOST_SUMS = 2_000

#: The values of each metric by the values of its labels, the query's first; divided, so in the metric's unit.
Samples = Mapping[Metric, Mapping[tuple[str, ...], float]]


class _Told:
    """What is told under one name: a query, and the runs of it before, whose counters continue."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._earlier: list[Ledger] = []
        # Of this process: the history of the checkpoint may not reach as far back, or there is none.
        self._starts, self._failures = 1, 0
        self._sums: Values = {}

    def follow_with(self, ledger: Ledger) -> None:
        """Tell of another run from now on."""
        self._earlier.append(self.ledger)
        self._starts += 1
        self.ledger = ledger

    def standing(self) -> Standing:
        """Return how the newest run stands, with the counters of all of them."""
        for earlier in [each for each in self._earlier if each.has_ended]:
            _add(self._sums, earlier.standing().counters)
            self._earlier.remove(earlier)
            self._failures += earlier.has_failed
        found = self.ledger.standing()
        if len(self._sums) > _MOST_SUMS:
            # Each run has had other operators, sources or names of metrics.
            self._sums = {place: sum_ for place, sum_ in self._sums.items() if place in found.counters}
        for each in (self._sums, *(earlier.standing().counters for earlier in self._earlier)):
            _add(found.counters, each)
        failures = self._failures + self.ledger.has_failed
        for place, count in ((STARTS, self._starts), (FAILURES, failures)):
            found.counters[place, ()] = max(found.counters[place, ()], count)
        return found


# These count all runs of a query, by its history.
_OF_ALL_RUNS = {(STARTS, ()), (FAILURES, ())}


def _add(sums: Values, more: Values) -> None:
    for place, value in more.items():
        if place not in _OF_ALL_RUNS:
            sums[place] = sums.get(place, 0) + value


class Exported:
    """The queries of an exporter. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}

    def add(self, ledger: Ledger) -> None:
        """Tell of a query, if it is not told of. Another run of a query continues the counters of the run before.

        Its label is its name, or its id if it has none; where another query that runs has that name, both.
        """
        with self._lock:
            label = self._label(ledger)
            present = self._told.get(label)
            if present is None:
                self._told[label] = _Told(ledger)
            elif present.ledger is not ledger:
                present.follow_with(ledger)
            ended = [label for label, told in self._told.items() if told.ledger.has_ended]
            for old in ended[: max(0, len(ended) - _MOST_ENDED)]:
                del self._told[old]

    def _label(self, ledger: Ledger) -> str:
        label = ledger.name or ledger.id
        for known, told in self._told.items():
            if told.ledger.id == ledger.id:
                return known
        present = self._told.get(label)
        return label if present is None or present.ledger.has_ended else f"{label} {ledger.id}"

    def samples(self) -> Samples:
        """Return the samples of all queries, by metric."""
        found: dict[Metric, dict[tuple[str, ...], float]] = {}
        with self._lock:
            for label, told in self._told.items():
                standing = told.standing()
                for (metric, labels), value in [*standing.counters.items(), *standing.gauges.items()]:
                    place = label, *labels
                    found.setdefault(metric, {})[place] = value / metric.divisor
        return found
