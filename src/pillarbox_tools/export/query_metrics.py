"""Sums a query's metrics over its epochs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from pillarbox._copies import COPY_MS
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.export import metric as m
from pillarbox_tools.export.metric import Metric
from pillarbox_tools.export.names import ExportNames, unique_labels
from pillarbox_tools.model.call_counters import BUDGET_COUNTER, budget_name
from pillarbox_tools.model.condition import CONDITIONS, conditions_of, input_at
from pillarbox_tools.model.epochs import backlog
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.settings import trigger_interval
from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch, inputs_of, vertex_id
from pillarbox_tools.model.windows import now_of

_log = logging.getLogger("pillarbox")

#: Maximum number of metric names of user functions per query, because a name per key would fill a database.
MOST_NAMES = 200
_USER = (m.USER_COUNT, m.USER_MIN, m.USER_MAX)

#: (metric, label values without the query, value before division). A None value removes the gauge.
Reading = tuple[Metric, tuple[str, ...], "float | None"]

# Watermarks beyond plus or minus this (Unix time in ms) mean "before all time" or "after all time".
_ALL_TIME = 1 << 60

#: Values by metric and label values, before division.
Values = dict[tuple[Metric, tuple[str, ...]], float]


class QueryMetrics:
    """A query's metrics, summed over epochs. Any thread may read them. The model calls :meth:`_add`."""

    def __init__(self, model: QueryModel) -> None:
        snapshot = model.snapshot()
        self._model = model
        self.id = snapshot.id
        self.name = snapshot.name
        self._names = ExportNames(snapshot.plan)
        self._lock = threading.Lock()
        versions = snapshot.run.versions
        self._values: Values = {
            (m.LEFT_OUT, ()): 0,
            (m.INFO, (snapshot.id, versions.get("spark", ""), versions.get("pillarbox", ""))): 1,
            **{(m.OPERATOR_INFO, labels): 1 for labels in self._names.infos},
        }
        if interval := trigger_interval(snapshot.run.settings):
            self._values[m.TRIGGER, ()] = interval
        self._user_names: set[tuple[str, ...]] = set()
        self._left_out: set[tuple[str, ...]] = set()
        model.follow(self._add)

    # -- called by the thread that feeds the model --

    def _add(self, epoch: SnapshotEpoch) -> None:
        readings = list(_readings_of(epoch, self._names))
        with self._lock:
            for metric, labels, value in readings:
                if metric in _USER and not self._is_exported(labels):
                    continue
                if value is None:
                    self._values.pop((metric, labels), None)
                elif metric.kind == "counter":
                    self._values[metric, labels] = self._values.get((metric, labels), 0) + max(0, value)
                else:
                    self._values[metric, labels] = value

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
            self._values[m.LEFT_OUT, ()] = len(self._left_out)
        return False

    # -- any thread --

    @property
    def has_ended(self) -> bool:
        return self._model.has_ended

    @property
    def has_failed(self) -> bool:
        return self._model.snapshot().run.has_crashed

    def values(self) -> Values:
        """Return the current values, without gauges after the query's end."""
        snapshot = self._model.snapshot()
        run = snapshot.run
        with self._lock:
            values = dict(self._values)
        values |= {(m.STARTS, ()): run.starts, (m.FAILURES, ()): run.crashes + run.has_crashed}
        if run.ended is not None:
            values = {series: value for series, value in values.items() if series[0].kind == "counter"}
            return {**values, (m.UP, ()): 0}
        return {**values, (m.UP, ()): 1, **_current_gauges(snapshot)}


def _current_gauges(snapshot: Snapshot) -> Values:
    now, beat, came = now_of(snapshot), snapshot.heartbeat, input_at(snapshot)
    present = {condition.name for condition in conditions_of(snapshot)}
    values: Values = {(m.CONDITION, (name,)): float(name in present) for name in CONDITIONS}
    values[m.RUN_BEGAN, ()] = snapshot.run.began
    values[m.EPOCH_RUNNING, ()] = 0 if beat is None or beat.since is None else max(beat.at, now) - beat.since
    values[m.INPUT_AGE, ()] = now - (came or snapshot.run.began)
    return values


def _readings_of(epoch: SnapshotEpoch, names: ExportNames) -> Iterator[Reading]:
    """Yield the epoch's counter increments and gauge values.

    Key counts, timer counts and state sizes include subtasks that did not run.
    """
    yield m.EPOCHS, (), 1
    for metric in m.OF_EPOCHS:
        value = getattr(epoch, metric.epoch)
        if value is not None:
            yield metric, (), value
    for part, duration in epoch.parts.items():
        yield m.SPARK_TIME, (part,), duration
    for source, label in zip(epoch.sources, unique_labels(source.description for source in epoch.sources)):
        yield m.SOURCE_ROWS, (label,), source.rows
        yield m.SOURCE_BACKLOG, (label,), backlog(source)
    for vertex in epoch.vertices:
        yield from _of_vertex(vertex, names, epoch.end)


def _of_vertex(vertex: OperatorReport, names: ExportNames, end: int) -> Iterator[Reading]:
    chain = names.chain(vertex_id(vertex))
    head = (chain[0],)
    for metric in m.OF_FIELDS:
        value = getattr(vertex, metric.field)
        if value is not None:
            yield metric, head, value
    yield m.UNFINISHED, head, len(vertex.unfinished)
    yield m.FALLBACKS, head, sum(vertex.fallbacks.values())
    yield m.MEAN, head, vertex.busy_ms / max(1, vertex.tasks)
    watermark = vertex.watermark
    if watermark is not None and abs(watermark) > _ALL_TIME:
        watermark = None
    yield m.WATERMARK, head, watermark
    yield m.WATERMARK_LAG, head, None if watermark is None else end - watermark
    for operator, records, (_, sent) in zip(chain, inputs_of(vertex), vertex.operators):
        yield m.RECORDS_IN, (operator,), records
        yield m.RECORDS_OUT, (operator,), sent
    for name, count in vertex.counters.items():
        yield from _of_counter(*names.split(vertex_id(vertex), name), count, names)
    for name, (lowest, highest) in vertex.gauges.items():
        labels = names.split(vertex_id(vertex), name)
        yield m.USER_MIN, labels, lowest
        yield m.USER_MAX, labels, highest


def _of_counter(operator: str, name: str, count: int, names: ExportNames) -> Iterator[Reading]:
    metric, labels = m.OF_COUNTERS.get(name, (m.USER_COUNT, (name,)))
    if name.startswith(COPY_MS):
        metric, labels = m.COPIES, (name[len(COPY_MS) :],)
    if match := BUDGET_COUNTER.fullmatch(f"{operator}.{name}"):
        metric, labels = m.OF_BUDGETS[match[3]], (budget_name(match[2]),)
    if metric.name.startswith("async.") and not names.calls(operator):
        metric, labels = m.USER_COUNT, (name,)
    if metric is m.LATENCY and not count:
        return
    yield metric, (operator, *labels), count
