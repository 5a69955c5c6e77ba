"""Aggregates a run's epochs into a bounded history of moments (about a minute each)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pillarbox._reports.operator_report import LARGEST_COUNTERS, OperatorReport
from pillarbox._reports.plan import Plan
from pillarbox_tools.model.epochs import rows_left
from pillarbox_tools.model.snapshot import SnapshotEpoch, SnapshotMoment, VertexId, inputs_of, vertex_id

_MINUTE = 60_000
# The last four hours are kept by the minute, earlier hours in less detail. Search moments by time, not by index.
_MOST = 480
_SUMS = ("epochs", "rows", "duration", "busy_ms", "back_pressured_ms", "repeated", "home_restarts", "fallbacks")
# Counters that are maxima rather than sums.
_LARGEST = (*LARGEST_COUNTERS, "in_flight")


class Moments:
    """Aggregates epochs into moments. Not thread-safe."""

    def __init__(self) -> None:
        self._moments: list[SnapshotMoment] = []

    def add(self, epoch: SnapshotEpoch, plan: Plan | None) -> None:
        new = moment_of(epoch, plan)
        if self._moments and new.at // _MINUTE == self._moments[-1].at // _MINUTE:
            self._moments[-1] = merged(self._moments[-1], new)
            return
        self._moments.append(new)
        if len(self._moments) > _MOST:
            old, rest = self._moments[: _MOST // 2], self._moments[_MOST // 2 :]
            pairs = [merged(earlier, other) for earlier, other in zip(old[::2], old[1::2])]
            self._moments = pairs + rest

    def all(self) -> list[SnapshotMoment]:
        return list(self._moments)


def moment_of(epoch: SnapshotEpoch, plan: Plan | None) -> SnapshotMoment:
    uids = {} if plan is None else {vertex_id(vertex): vertex.uid for vertex in plan.vertices}
    stateful = [vertex for vertex in epoch.vertices if vertex.state_bytes is not None]
    watermarks = [vertex.watermark for vertex in stateful if vertex.watermark is not None]
    times = [task.event_times[1] for task in epoch.tasks if task.is_source and task.event_times]
    lowest = min(watermarks, default=None)
    counters: dict[str, int] = {}
    for vertex in epoch.vertices:
        counters = _add_counters(counters, vertex.counters)
    return SnapshotMoment(
        at=epoch.end,
        epochs=1,
        first=epoch.number,
        last=epoch.number,
        rows=epoch.rows,
        duration=epoch.duration,
        longest=epoch.duration,
        busy_ms=sum(vertex.busy_ms for vertex in epoch.vertices),
        back_pressured_ms=sum(vertex.back_pressured_ms for vertex in epoch.vertices),
        state_bytes=_by_uid((_uid(uids, vertex), vertex.state_bytes or 0) for vertex in stateful),
        keys=_by_uid((_uid(uids, vertex), vertex.keys or 0) for vertex in stateful),
        timers=sum(vertex.timers or 0 for vertex in stateful),
        lag=None if lowest is None or abs(lowest) > 1 << 60 else epoch.end - lowest,
        counters=counters,
        repeated=sum(vertex.repeated for vertex in epoch.vertices),
        process_bytes=epoch.process_bytes,
        home_restarts=sum(vertex.home_restarts for vertex in epoch.vertices),
        fallbacks=sum(sum(vertex.fallbacks.values()) for vertex in epoch.vertices),
        inputs=_by_uid(_inputs(epoch, plan)),
        backlog=rows_left(epoch),
        newest=max(times, default=None),
    )


def _inputs(epoch: SnapshotEpoch, plan: Plan | None) -> Iterator[tuple[str, int]]:
    chains = {} if plan is None else {vertex_id(vertex): vertex.operators for vertex in plan.vertices}
    for vertex in epoch.vertices:
        for operator, records in zip(chains.get(vertex_id(vertex), ()), inputs_of(vertex)):
            if operator.uid:
                yield operator.uid, records


def _by_uid(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for uid, count in counts:
        totals[uid] = totals.get(uid, 0) + count
    return totals


def _uid(uids: dict[VertexId, str], vertex: OperatorReport) -> str:
    return uids.get(vertex_id(vertex)) or f"{vertex.program} {vertex.number}"


def merged(earlier: SnapshotMoment, other: SnapshotMoment) -> SnapshotMoment:
    sums: dict[str, Any] = {name: getattr(earlier, name) + getattr(other, name) for name in _SUMS}
    # Other fields have their last values. Maps are merged, because an epoch runs only tasks that have work.
    return replace(
        other,
        **sums,
        first=earlier.first,
        longest=max(earlier.longest, other.longest),
        state_bytes={**earlier.state_bytes, **other.state_bytes},
        keys={**earlier.keys, **other.keys},
        counters=_add_counters(earlier.counters, other.counters),
        inputs=_add_counters(earlier.inputs, other.inputs),
        newest=max((time for time in (earlier.newest, other.newest) if time is not None), default=None),
        process_bytes=other.process_bytes or earlier.process_bytes,
    )


def _add_counters(first: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    totals = dict(first)
    for name, count in other.items():
        largest = name.rpartition(".")[2] in _LARGEST
        totals[name] = max(totals.get(name, 0), count) if largest else totals.get(name, 0) + count
    return totals
