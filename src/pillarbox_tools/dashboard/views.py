"""The JSON of the dashboard's API and pages: snapshots, and conclusions from them.

Points in time are Unix times in ms, durations are in ms. Lists begin with the newest or worst item. None means unknown.
Objects of the model have their classes' fields, without default values.

``/api/queries`` is a list of entries (:func:`entry_of`). ``/api/queries/ID`` is a view (:func:`view_of`) with the
additional fields ``stages`` (the core's ``Stage``), ``is_bundle`` (whether the data never changes) and ``change`` (the
number of the newest change). ``/api/queries/ID?since=CHANGE`` contains ``change`` and the fields that have changed
since CHANGE.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import PlanVertex
from pillarbox_tools.doctor.rules import wrong
from pillarbox_tools.model.call_counters import counters_of
from pillarbox_tools.model.condition import conditions_of, lag_now, last_report_at, rate_now
from pillarbox_tools.model.executor_memory import executor_memory_of
from pillarbox_tools.model.growth import growth_of, memory_of
from pillarbox_tools.model.held_watermarks import held_watermarks
from pillarbox_tools.model.skew import skew_of
from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch, SnapshotMoment, SnapshotRun, VertexId, vertex_id

Fields = dict[str, Any]

_PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "commitBatch")
_BARS = 200
_POINTS = 240
_SUMS = ("epochs", "rows", "duration", "repeated", "home_restarts", "fallbacks")
_FAILURE = 120
_LOST = "its driver has not recorded the end: it was killed, or its machine is gone"


def entry_of(snapshot: Snapshot) -> Fields:
    newest = snapshot.newest
    failures = snapshot.run.failures
    return {
        "id": snapshot.id,
        "name": snapshot.name,
        "checkpoint": snapshot.checkpoint,
        "status": snapshot.run.status,
        "is_live": snapshot.is_live,
        "began": snapshot.run.began,
        "epoch": None if newest is None else newest.number,
        "duration": None if newest is None else newest.duration,
        "rows": None if newest is None else newest.rows,
        "rows_per_second": rate_now(snapshot),  # 0 if there was no input for a while
        "lag": lag_now(snapshot),  # of event time
        "conditions": conditions_of(snapshot),
        "failure": failures[-1].message if failures else None,
    }


def view_of(snapshot: Snapshot) -> Fields:
    """Return a query's page as data. Do not change the data, which shares parts with the snapshot."""
    epoch = _shown_epoch(snapshot)
    return {
        **entry_of(snapshot),
        "at": last_report_at(snapshot),
        # Its moments are the points of the time series. Counts are sums; other fields are maxima, so that peaks are
        # visible.
        "run": _drawn_run(snapshot.run, _POINTS),
        "earlier": [_earlier(run) for run in snapshot.earlier],
        "settings": snapshot.run.settings,
        "versions": snapshot.run.versions,
        "failures": snapshot.run.failures,
        "plan": _plan(snapshot, epoch),
        "keyed": list(dict.fromkeys(vertex.uid for vertex in snapshot.vertices if vertex.is_keyed)),
        "strip": [
            SnapshotEpoch(epoch.number, epoch.began, epoch.duration, {}, epoch.rows) for epoch in snapshot.epochs
        ],
        # The epoch whose phases and longest tasks are drawn.
        "shown": None if epoch is None else _drawn(epoch),
        "watermarks": held_watermarks(snapshot),
        "skew": [] if epoch is None else skew_of(epoch),
        # calls, keyed_calls, budgets and counters
        **counters_of(snapshot.epochs)._asdict(),
        "state_sizes": snapshot.state_sizes,
        "growth": growth_of(snapshot),
        "memory": memory_of(snapshot),
        "executors": executor_memory_of(snapshot),
        "findings": wrong(snapshot),
        "missing": snapshot.missing,
    }


def _shown_epoch(snapshot: Snapshot) -> SnapshotEpoch | None:
    with_tasks = [epoch for epoch in snapshot.epochs if epoch.tasks]
    newest = with_tasks[-1] if with_tasks else snapshot.newest
    return next((epoch for epoch in reversed(with_tasks) if epoch.rows), newest)


def _drawn_run(run: SnapshotRun, points: int) -> SnapshotRun:
    size = max(1, -(-len(run.moments) // points))
    moments = [_point(run.moments[start : start + size]) for start in range(0, len(run.moments), size)]
    versions = {name: version for name, version in run.versions.items() if name in ("spark", "pillarbox")}
    lines = [failure.message.partition("\n")[0] for failure in run.failures[-1:]]
    failures = [Failure(message=line if len(line) <= _FAILURE else f"{line[: _FAILURE - 1]}…") for line in lines]
    return SnapshotRun(run.id, run.began, run.ended, run.status, versions=versions, moments=moments, failures=failures)


def _earlier(run: SnapshotRun) -> SnapshotRun:
    drawn = _drawn_run(run, 1)
    if run.status in ("lost", "running"):
        return replace(drawn, status="lost", failures=drawn.failures or [Failure(message=_LOST)])
    return drawn


def _point(moments: Sequence[SnapshotMoment]) -> SnapshotMoment:
    last, largest = moments[-1], max(moments, key=lambda moment: sum(moment.state_bytes.values()))
    return SnapshotMoment(
        at=last.at,
        first=moments[0].first,
        last=last.last,
        longest=max(moment.longest for moment in moments),
        state_bytes=largest.state_bytes,
        lag=max((moment.lag for moment in moments if moment.lag is not None), default=None),
        process_bytes=max(
            (moment.process_bytes for moment in moments if moment.process_bytes is not None), default=None
        ),
        **{name: sum(getattr(moment, name) for moment in moments) for name in _SUMS},
    )


def _plan(snapshot: Snapshot, epoch: SnapshotEpoch | None) -> Fields | None:
    if snapshot.plan is None:
        return None
    runs = {} if epoch is None else {vertex_id(vertex): vertex for vertex in epoch.vertices}
    shares = {} if epoch is None else _level_shares(snapshot.plan.vertices, runs, epoch.duration)
    vertices = [
        {
            **vars(vertex),
            "level_share": shares.get((vertex.program, vertex.level), 0.0),
            "run": runs.get(vertex_id(vertex)),
        }
        for vertex in snapshot.plan.vertices
    ]
    return {"vertices": vertices, "edges": snapshot.plan.edges}


def _level_shares(
    vertices: Sequence[PlanVertex], runs: dict[VertexId, OperatorReport], duration: int
) -> dict[tuple[str, int], float]:
    levels: defaultdict[tuple[str, int], list[OperatorReport]] = defaultdict(list)
    for vertex in vertices:
        run = runs.get(vertex_id(vertex))
        if run is not None and run.began:
            levels[vertex.program, vertex.level].append(run)
    spans = {level: max(run.ended for run in of) - min(run.began for run in of) for level, of in levels.items()}
    return {level: min(1.0, span / max(1, duration)) for level, span in spans.items()}


def _drawn(epoch: SnapshotEpoch) -> SnapshotEpoch:
    names = [*(part for part in _PARTS if part in epoch.parts), *sorted(epoch.parts.keys() - set(_PARTS))]
    longest = sorted(epoch.tasks, key=lambda task: -task.total_ms)[:_BARS]
    return replace(
        epoch,
        parts={name: epoch.parts[name] for name in names},
        vertices=[],
        tasks=[
            replace(task, key_sample=None, hot_keys=None, versions=None, counters={}, gauges={}) for task in longest
        ],
    )
