"""What the pages draw: a snapshot, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import PlanVertex
from pillarbox_tools.dashboard.documents import Entry, PlanView, VertexView, View
from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.rules import wrong
from pillarbox_tools.model.condition import conditions_of, heard_at, lag_now, rate_now
from pillarbox_tools.model.executor_memory import executor_memory_of
from pillarbox_tools.model.growth import growth_of, memory_of
from pillarbox_tools.model.held_watermarks import held_watermarks
from pillarbox_tools.model.skew import skew_of
from pillarbox_tools.model.snapshot import EpochRun, Moment, Run, Snapshot

# Spark's parts of an epoch, in the order in which they come.
_PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "commitBatch")
# Counters of asynchronous operators.
_CALLS = (
    *("requests", "retried", "completed", "failed", "timed_out", "dropped", "cache_hits", "in_flight"),
    *("in_flight_max", "latency_p50_us", "latency_p95_us", "latency_p99_us", "rate_limited_ms"),
)
# Of an epoch, the bars of so many tasks are drawn: those that took longest.
_BARS = 200
# So many points of a line are drawn. Each has these sums of its moments.
_POINTS = 240
_SUMS = ("epochs", "rows", "duration", "repeated", "home_restarts", "fallbacks")
# A failure in the list of runs has so many characters.
_FAILURE = 120
_LOST = "its driver has written no end: it was killed, or its machine is gone"


def entry_of(snapshot: Snapshot) -> Entry:
    """Return a query as the list of queries shows it."""
    newest = snapshot.newest
    failures = snapshot.run.failures
    return Entry(
        id=snapshot.id,
        name=snapshot.name,
        checkpoint=snapshot.checkpoint,
        status=snapshot.run.status,
        is_live=snapshot.is_live,
        began=snapshot.run.began,
        epoch=None if newest is None else newest.number,
        duration=None if newest is None else newest.duration,
        rows=None if newest is None else newest.rows,
        rows_per_second=rate_now(snapshot),
        lag=lag_now(snapshot),
        conditions=conditions_of(snapshot),
        failure=failures[-1].message if failures else None,
    )


def view_of(snapshot: Snapshot) -> View:
    """Return all that the page of a query draws, which is to be read alone: parts of it are the snapshot's own."""
    epoch = _shown_epoch(snapshot)
    calls, counters = _counts(snapshot.epochs)
    return View(
        **vars(entry_of(snapshot)),
        at=heard_at(snapshot),
        run=_drawn_run(snapshot.run, _POINTS),
        earlier=[_earlier(each) for each in snapshot.earlier],
        settings=snapshot.run.settings,
        versions=snapshot.run.versions,
        failures=snapshot.run.failures,
        plan=_plan(snapshot, epoch),
        keyed=[] if snapshot.plan is None else _keyed(snapshot.plan.vertices),
        strip=[EpochRun(each.number, each.began, each.duration, {}, each.rows) for each in snapshot.epochs],
        shown=None if epoch is None else _drawn(epoch),
        watermarks=held_watermarks(snapshot),
        skew=[] if epoch is None else skew_of(epoch),
        calls=calls,
        counters=counters,
        state_sizes=snapshot.state_sizes,
        growth=growth_of(snapshot),
        memory=memory_of(snapshot),
        executors=executor_memory_of(snapshot),
        findings=wrong(Facts.of(snapshot)),
        missing=snapshot.missing,
    )


def _keyed(vertices: Sequence[PlanVertex]) -> list[str]:
    return list(dict.fromkeys(each.uid for each in vertices if each.is_keyed))


def _shown_epoch(snapshot: Snapshot) -> EpochRun | None:
    """Return the newest epoch with tasks that did something; else the newest one."""
    with_tasks = [each for each in snapshot.epochs if each.tasks]
    newest = with_tasks[-1] if with_tasks else snapshot.newest
    return next((each for each in reversed(with_tasks) if each.rows), newest)


def _drawn_run(run: Run, points: int) -> Run:
    """Return a run with at most so many points, and with what the list of runs shows."""
    size = max(1, -(-len(run.moments) // points))
    moments = [_point(run.moments[start : start + size]) for start in range(0, len(run.moments), size)]
    versions = {name: version for name, version in run.versions.items() if name in ("spark", "pillarbox")}
    failures = [_summary(each) for each in run.failures[-1:]]
    return Run(run.id, run.began, run.ended, run.status, versions=versions, moments=moments, failures=failures)


def _earlier(run: Run) -> Run:
    """Return a run that a later one has followed."""
    drawn = _drawn_run(run, 1)
    if run.status in ("lost", "running"):
        return replace(drawn, status="lost", failures=drawn.failures or [Failure(message=_LOST)])
    return drawn


def _summary(failure: Failure) -> Failure:
    line = failure.message.partition("\n")[0]
    return Failure(message=line if len(line) <= _FAILURE else line[: _FAILURE - 1] + "…")


def _point(moments: Sequence[Moment]) -> Moment:
    last, largest = moments[-1], max(moments, key=lambda each: sum(each.state_bytes.values()))
    return Moment(
        at=last.at,
        first=moments[0].first,
        last=last.last,
        longest=max(each.longest for each in moments),
        state_bytes=largest.state_bytes,
        lag=max((each.lag for each in moments if each.lag is not None), default=None),
        process_bytes=max((each.process_bytes for each in moments if each.process_bytes is not None), default=None),
        **{name: sum(getattr(each, name) for each in moments) for name in _SUMS},
    )


def _plan(snapshot: Snapshot, epoch: EpochRun | None) -> PlanView | None:
    if snapshot.plan is None:
        return None
    runs = {} if epoch is None else {(each.program, each.number): each for each in epoch.vertices}
    shares = {} if epoch is None else _level_shares(snapshot.plan.vertices, runs, epoch.duration)
    vertices = [
        VertexView(
            **vars(each),
            level_share=shares.get((each.program, each.level), 0.0),
            run=runs.get((each.program, each.number)),
        )
        for each in snapshot.plan.vertices
    ]
    return PlanView(vertices, snapshot.plan.edges)


def _level_shares(
    vertices: Sequence[PlanVertex], runs: dict[tuple[str, int], OperatorReport], duration: int
) -> dict[tuple[str, int], float]:
    """Return the share of an epoch in which tasks of a level ran, by program and level."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for vertex in vertices:
        run = runs.get((vertex.program, vertex.number))
        if run is not None and run.began:
            place = vertex.program, vertex.level
            began, ended = spans.get(place, (run.began, run.ended))
            spans[place] = min(began, run.began), max(ended, run.ended)
    return {place: min(1.0, (ended - began) / max(1, duration)) for place, (began, ended) in spans.items()}


def _drawn(epoch: EpochRun) -> EpochRun:
    """Return an epoch with Spark's parts in their order, and with the tasks that are drawn, without their samples."""
    names = [*(each for each in _PARTS if each in epoch.parts), *sorted(epoch.parts.keys() - set(_PARTS))]
    longest = sorted(epoch.tasks, key=lambda task: -task.total_ms)[:_BARS]
    return replace(
        epoch,
        parts={name: epoch.parts[name] for name in names},
        vertices=[],
        tasks=[replace(each, key_sample=None, versions=None, counters={}, gauges={}) for each in longest],
    )


def _counts(epochs: Sequence[EpochRun]) -> tuple[list[dict[str, str | int]], dict[str, int]]:
    """Return what asynchronous operators did in their newest epoch, and the sums of all other counters.

    Operators that call services count what is completed.
    """
    every = [
        (epoch.number, name, count)
        for epoch in epochs
        for vertex in epoch.vertices
        for name, count in vertex.counters.items()
    ]
    callers = {name.removesuffix(".completed") for _, name, _ in every if name.endswith(".completed")}
    calls: dict[str, dict[str, str | int]] = {}
    counters: dict[str, int] = {}
    for number, name, count in every:
        uid, _, counter = name.rpartition(".")
        if counter in _CALLS and uid in callers:
            calls[uid] = {**calls.get(uid, {"uid": uid}), "epoch": number, counter: count}
        else:
            counters[name] = counters.get(name, 0) + count
    return list(calls.values()), counters
