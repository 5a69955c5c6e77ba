"""The metrics of a query: each epoch is added once, in the thread that feeds the model."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from pillarbox_tools.export import metric as m
from pillarbox_tools.export.metric import Metric
from pillarbox_tools.export.names import Names
from pillarbox_tools.export.readings import readings_of
from pillarbox_tools.model.condition import CONDITIONS, conditions_of, input_at
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.settings import trigger_interval
from pillarbox_tools.model.snapshot import EpochRun, Snapshot
from pillarbox_tools.model.windows import now_of

_log = logging.getLogger("pillarbox")

#: Maximum number of metric names of user functions per query: a name per key would fill a database.
MOST_NAMES = 200
_USER = (m.USER_COUNT, m.USER_MIN, m.USER_MAX)

Values = dict[tuple[Metric, tuple[str, ...]], float]


@dataclass
class MetricValues:
    """Values by metric and label values, before division. Gauges are empty after the query's end."""

    counters: Values = field(default_factory=dict)
    gauges: Values = field(default_factory=dict)


class QueryMetrics:
    """A query's metrics, summed over its model's epochs. Any thread may read them."""

    def __init__(self, model: QueryModel) -> None:
        snapshot = model.snapshot()
        self._model = model
        self.id = snapshot.id
        self.name = snapshot.name
        self._names = Names(snapshot.plan)
        self._lock = threading.Lock()
        self._counters: Values = {}
        self._gauges: Values = {(m.LEFT_OUT, ()): 0}
        self._user_names: set[tuple[str, ...]] = set()
        self._left_out: set[tuple[str, ...]] = set()
        versions = snapshot.run.versions
        self._gauges[m.INFO, (snapshot.id, versions.get("spark", ""), versions.get("pillarbox", ""))] = 1
        interval = trigger_interval(snapshot.run.settings)
        if interval:
            self._gauges[m.TRIGGER, ()] = interval
        for labels in self._names.infos:
            self._gauges[m.OPERATOR_INFO, labels] = 1
        model.follow(self._add)

    # -- called by the thread that feeds the model --

    def _add(self, epoch: EpochRun) -> None:
        readings = list(readings_of(epoch, self._names))
        with self._lock:
            for metric, labels, value in readings:
                if metric in _USER and not self._is_exported(labels):
                    continue
                if value is None:
                    self._gauges.pop((metric, labels), None)
                elif metric.kind == "counter":
                    self._counters[metric, labels] = self._counters.get((metric, labels), 0) + max(0, value)
                else:
                    self._gauges[metric, labels] = value

    def _is_exported(self, labels: tuple[str, ...]) -> bool:
        if labels in self._user_names:
            return True
        if len(self._user_names) < MOST_NAMES:
            self._user_names.add(labels)
            return True
        operator, name = labels
        if not self._left_out:
            _log.warning(
                "query %s: its functions have more than %d metric names; %r of operator %r and later names are not"
                " exported. Do not put keys into metric names",
                *(self.name or self.id, MOST_NAMES, name, operator),
            )
        if len(self._left_out) < MOST_NAMES:
            self._left_out.add(labels)
            self._gauges[m.LEFT_OUT, ()] = len(self._left_out)
        return False

    # -- any thread --

    @property
    def has_ended(self) -> bool:
        return self._model.has_ended

    @property
    def has_failed(self) -> bool:
        return self._model.snapshot().run.has_crashed

    def values(self) -> MetricValues:
        snapshot = self._model.snapshot()
        run = snapshot.run
        with self._lock:
            counters = {
                **self._counters,
                (m.STARTS, ()): run.starts,
                (m.FAILURES, ()): run.crashes + run.has_crashed,
            }
            if run.ended is not None:
                return MetricValues(counters, {(m.UP, ()): 0})
            return MetricValues(counters, {**self._gauges, (m.UP, ()): 1, **_current_gauges(snapshot)})


def _current_gauges(snapshot: Snapshot) -> Values:
    now, beat, came = now_of(snapshot), snapshot.heartbeat, input_at(snapshot)
    present = {condition.name for condition in conditions_of(snapshot)}
    values: Values = {(m.CONDITION, (name,)): float(name in present) for name in CONDITIONS}
    values[m.RUN_BEGAN, ()] = snapshot.run.began
    values[m.EPOCH_RUNNING, ()] = 0 if beat is None or beat.since is None else max(beat.at, now) - beat.since
    values[m.INPUT_AGE, ()] = now - (came or snapshot.run.began)
    return values
