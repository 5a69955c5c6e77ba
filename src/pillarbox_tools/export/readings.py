"""Readings of an epoch: increments of counters and values of gauges."""

from __future__ import annotations

from collections.abc import Iterator

from pillarbox._copies import COPY_MS
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.export import metric as m
from pillarbox_tools.export.metric import Metric
from pillarbox_tools.export.names import Names, unique_labels
from pillarbox_tools.model.epochs import backlog
from pillarbox_tools.model.snapshot import EpochRun, vertex_id

#: (metric, label values without the query, value before division). None removes the gauge's value.
Reading = tuple[Metric, tuple[str, ...], "float | None"]

# Watermarks beyond these (epoch ms) mean "before all time" and "after all time".
_ALL_TIME = 1 << 60


def readings_of(epoch: EpochRun, names: Names) -> Iterator[Reading]:
    """Yield an epoch's readings: increments for counters, final values for gauges.

    The vertices' keys, timers and state size include subtasks that did not run (``Subtasks``).
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


def _of_vertex(vertex: OperatorReport, names: Names, end: int) -> Iterator[Reading]:
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
    for index, (operator, (came, went)) in enumerate(zip(chain, vertex.operators)):
        # A broadcast record counts once, although each task receives it.
        yield m.RECORDS_IN, (operator,), came if index else vertex.records_in
        yield m.RECORDS_OUT, (operator,), went
    for name, count in vertex.counters.items():
        yield from _of_counter(*names.split(vertex_id(vertex), name), count, names)
    for name, (lowest, highest) in vertex.gauges.items():
        labels = names.split(vertex_id(vertex), name)
        yield m.USER_MIN, labels, lowest
        yield m.USER_MAX, labels, highest


def _of_counter(operator: str, name: str, count: int, names: Names) -> Iterator[Reading]:
    metric, labels = m.OF_COUNTERS.get(name, (m.USER_COUNT, (name,)))
    if name.startswith(COPY_MS):
        metric, labels = m.COPIES, (name[len(COPY_MS) :],)
    if metric.name.startswith("async.") and not names.calls(operator):
        metric, labels = m.USER_COUNT, (name,)
    if metric is m.LATENCY and not count:
        return
    yield metric, (operator, *labels), count
