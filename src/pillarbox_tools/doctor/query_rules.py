"""Rules about a query's newest epochs and history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, takewhile

from pillarbox._copies import COPY_MS
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._task.memory import readable
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox_tools.doctor.finding import MissingFactError, require
from pillarbox_tools.model.condition import CONDITIONS, conditions_of, date, name_of
from pillarbox_tools.model.executor_memory import executor_memory_of
from pillarbox_tools.model.growth import memory_of
from pillarbox_tools.model.held_watermarks import held_watermarks
from pillarbox_tools.model.settings import number_in
from pillarbox_tools.model.skew import skew_of
from pillarbox_tools.model.snapshot import (
    Snapshot,
    SnapshotEpoch,
    SnapshotMoment,
    VertexId,
    by_vertex,
    last_reports,
    vertex_id,
)
from pillarbox_tools.model.windows import (
    DAY,
    HOUR,
    NOW,
    as_of,
    moment_at,
    recent_epochs,
)

_FEW = 10
_SOME = 3
_NO_EPOCHS = "the query's epochs: no epoch with rows has ended yet"
_NO_TASKS = "the tasks of an epoch with rows"


def _epochs(snapshot: Snapshot) -> list[SnapshotEpoch]:
    return require([epoch for epoch in snapshot.epochs if epoch.rows] or None, _NO_EPOCHS)


def _recent(snapshot: Snapshot) -> list[SnapshotEpoch]:
    return require(recent_epochs(snapshot, _SOME) or None, _NO_EPOCHS)


def moments_of(snapshot: Snapshot) -> list[SnapshotMoment]:
    return require(snapshot.run.moments or None, "the query's history: no epoch has ended yet")


def executor_memory(snapshot: Snapshot) -> str | None:
    memory = memory_of(snapshot)
    limit = require(memory.limit, "the memory that workers may use: spark.executor.pyspark.memory is not set")
    used = require(memory.bytes, "the workers' memory")
    if used < 0.8 * limit:
        return None
    return (
        f"a worker process uses {used / limit:.0%} of its {limit >> 20} MiB: raise spark.executor.pyspark.memory, store"
        " less per key, or raise the parallelism with pillarbox rescale"
    )


def container_memory(snapshot: Snapshot) -> str | None:
    executors = executor_memory_of(snapshot)
    limited = [(executor, executor.limit) for executor in executors if executor.limit] or None
    unknown = "the containers' memory: neither a task nor a setting has reported a limit"
    fullest, limit = max(require(limited, unknown), key=lambda pair: (pair[0].heap + pair[0].needed) / pair[1])
    if fullest.heap + fullest.needed <= 0.9 * limit:
        return None
    measured = "" if fullest.home_bytes is None else f", of which its homes use {readable(fullest.home_bytes)}"
    return (
        f"the executor on {fullest.name} needs {readable(fullest.heap + fullest.needed)} of the"
        f" {readable(limit)} of its container: heap {readable(fullest.heap)},"
        f" {', '.join(f'{term.name} {readable(term.bytes)}' for term in fullest.terms)}{measured}; set"
        f" spark.executor.memoryOverhead to {fullest.overhead >> 20}m (see pillarbox memory), or use more executors"
    )


def memory_runs_out(snapshot: Snapshot) -> str | None:
    memory = memory_of(snapshot)
    if memory.full_at is None:
        if memory.limit is not None and memory.per_day is not None:
            return None
        raise MissingFactError(f"when memory runs out: {memory.message}")
    days = (memory.full_at - snapshot.at) / DAY
    if days > 7:
        return None
    return (
        f"memory runs out in {max(0.0, days):.1f} days, on {date(memory.full_at)}, if it keeps growing at this rate:"
        " give state a time-to-live, or raise spark.executor.pyspark.memory"
    )


def heavy_keys(snapshot: Snapshot) -> str | None:
    with_tasks = require([epoch for epoch in _epochs(snapshot) if epoch.tasks] or None, _NO_TASKS)
    skews = {(skew.program, skew.vertex): skew for epoch in with_tasks for skew in skew_of(epoch)}
    for skew in skews.values():
        for key in skew.heavy:
            if key.share - key.error > 0.25 and skew.tasks > 2 and skew.factor > 2 and skew.busiest_ms > 500:
                return (
                    f"key {key.key} has {key.share:.0%} (plus or minus {key.error:.0%}) of the records of"
                    f" {name_of(snapshot, (skew.program, skew.vertex))}, and its subtask is busy"
                    f" {skew.factor:.1f} times as long as the mean: aggregate before key_by(...), or use a finer key"
                )
    return None


def skewed_tasks(snapshot: Snapshot) -> str | None:
    """Check that in the last five minutes, no task has worked while all other tasks of its operator waited."""
    epochs = _recent(snapshot)
    # The task must be the bottleneck, not the sink or Spark.
    long = max(1000.0, 0.2 * sum(epoch.duration for epoch in epochs))
    for vertex, every in _runs(epochs).items():
        if any(name.endswith(".in_flight_max") for run in every for name in run.counters):
            continue  # a task that waits for a service counts as busy, but blocks no other task
        runs = [run for run in every if run.tasks > 1]
        by_subtask: Counter[int] = Counter()
        for run in runs:
            by_subtask[run.busiest] += run.busiest_ms
        [(subtask, busiest)] = by_subtask.most_common(1) or [(0, 0)]
        others = (sum(run.busy_ms for run in runs) - busiest) / max(1, max((run.tasks for run in runs), default=1) - 1)
        if busiest > long and busiest > 4 * others:
            return (
                f"subtask {subtask} of {name_of(snapshot, vertex)}"
                f" was busy for {busiest / 1000:.1f} s in {len(runs)} epochs, the other subtasks for"
                f" {others / 1000:.1f} s on average: check its heavy keys, or the partitions of its source"
            )
    return None


def stuck_watermark(snapshot: Snapshot) -> str | None:
    epochs = _epochs(snapshot)
    if len(epochs) < _FEW:
        raise MissingFactError(f"whether event time advances: fewer than {_FEW} epochs with rows have ended")
    if not _records_advance(epochs):
        return None  # no event time, or all times are equal
    for vertex, runs in _runs(epochs).items():
        watermark, count = runs[-1].watermark, _unchanged([run.watermark for run in runs])
        if count < _FEW or watermark in (None, MAX_WATERMARK):
            continue
        if watermark == MIN_TIMESTAMP and not runs[-1].timers:
            continue
        if watermark is not None and watermark > as_of(snapshot) + HOUR:
            continue
        why = next((held.message for held in held_watermarks(snapshot) if (held.program, held.vertex) == vertex), "")
        progress = "has not begun" if watermark == MIN_TIMESTAMP else "has not advanced"
        return (
            f"event time of {name_of(snapshot, vertex)} {progress} in {count} epochs with rows:"
            f" {why or 'its input holds it back'}; see with_idleness(...) for sources that may be silent"
        )
    return None


def _unchanged(watermarks: list[int | None]) -> int:
    return len(list(takewhile(lambda watermark: watermark == watermarks[-1], reversed(watermarks))))


def _records_advance(epochs: list[SnapshotEpoch]) -> bool:
    newest = [
        max(times) for epoch in epochs if (times := [task.event_times[1] for task in epoch.tasks if task.event_times])
    ]
    return len(newest) > 1 and newest[-1] > newest[0]


def _runs(epochs: list[SnapshotEpoch]) -> dict[VertexId, list[OperatorReport]]:
    return by_vertex(run for epoch in epochs for run in epoch.vertices)


def condition(name: str) -> Callable[[Snapshot], str | None]:
    def check(snapshot: Snapshot) -> str | None:
        condition = next((condition for condition in conditions_of(snapshot) if condition.name == name), None)
        return None if condition is None else f"{condition.line}: {CONDITIONS[name]}"

    check.__name__ = name.replace(" ", "_")
    return check


def piling_timers(snapshot: Snapshot) -> str | None:
    """Check that keys have few timers, except for windows, which by design have one timer per pane."""
    kinds = {vertex_id(vertex): vertex.kind for vertex in snapshot.vertices}
    for vertex in (runs[-1] for runs in _runs(_epochs(snapshot)).values()):
        timers, keys = vertex.timers or 0, vertex.keys or 0
        is_window = "window" in kinds.get(vertex_id(vertex), "")
        if not is_window and keys and timers > 100 * keys and timers > 10_000:
            return (
                f"the keys of {name_of(snapshot, vertex_id(vertex))} have {timers / keys:,.0f} timers each, {timers:,}"
                " in all: keep one timer per key, and delete the previous one with"
                " ctx.timer_service().delete_event_time_timer(...)"
            )
    return None


def endless_state(snapshot: Snapshot) -> str | None:
    """Check that the number of keys has not grown without bound in the last day. Needs an hour of history.

    If keys expire, their number sometimes decreases.
    """
    moments = moments_of(snapshot)
    now = as_of(snapshot)
    if moments[-1].at - moments[0].at < HOUR:
        raise MissingFactError("whether state grows without bound: the history is shorter than an hour")
    for uid, keys in moments[-1].keys.items():
        of_day = [moment for moment in moments if uid in moment.keys and moment.at >= now - DAY]
        if len(of_day) < _FEW or keys <= 100_000:
            continue
        steps = [later.keys[uid] - earlier.keys[uid] for earlier, later in pairwise(of_day)]
        came, went = sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0)
        hour = keys - moment_at(of_day, now - HOUR).keys[uid]
        lately = keys - moment_at(of_day[:-1], now - NOW).keys[uid]
        span = of_day[-1].at - of_day[0].at
        steady = hour >= 0.1 * (keys - of_day[0].keys[uid]) * HOUR / max(span, HOUR)
        if came - went > 0.01 * keys and went <= 0.1 * came and steady and hour > 0 and lately > 0:
            return (
                f"the keys of {uid!r} have grown from {of_day[0].keys[uid]:,} to {keys:,} in {span / HOUR:.1f} hours,"
                " and few were removed: give its states a time-to-live (StateTtlConfig), or clear them in a timer"
            )
    return None


def partitions_and_cores(snapshot: Snapshot) -> str | None:
    cores = require(number_in(snapshot.run.settings, "cores"), "the cores of the cluster")
    partitions = require(number_in(snapshot.run.settings, "parallelism"), "the parallelism of the query")
    if partitions > 8 * cores and partitions > 32:
        return (
            f"the query has {partitions} state partitions and {cores} cores: each partition adds"
            f" milliseconds to every epoch, so rescale it to {2 * cores} with pillarbox rescale"
        )
    return None


def back_pressure(snapshot: Snapshot) -> str | None:
    for vertex in last_reports(_recent(snapshot)).values():
        if vertex.back_pressured_ms > max(3 * vertex.busy_ms, 2000) and _is_usual(snapshot, vertex):
            return (
                f"tasks of {name_of(snapshot, vertex_id(vertex))} waited"
                f" {vertex.back_pressured_ms / 1000:.1f} s to send their output, and were busy for"
                f" {vertex.busy_ms / 1000:.1f} s: the sink is slower than the program, so check it first"
            )
    return None


def _is_usual(snapshot: Snapshot, vertex: OperatorReport) -> bool:
    runs = _runs(_epochs(snapshot)[-_FEW:])[vertex_id(vertex)]
    return sum(run.back_pressured_ms > 3 * run.busy_ms for run in runs) > len(runs) / 2


def tasks_in_workers(snapshot: Snapshot) -> str | None:
    newest = require(snapshot.epochs[-_FEW:] or None, "the processes of the tasks: no epoch has ended yet")
    for vertex, runs in _runs(newest).items():
        without = sum(sum(run.fallbacks.values()) for run in runs)
        if without:
            why = next(reason for run in reversed(runs) for reason in run.fallbacks)
            return (
                f"{without:,} of {sum(run.tasks for run in runs):,} tasks of"
                f" {name_of(snapshot, vertex)} in the last {len(newest)} epochs ran"
                f" in Python workers, because no home process was available: {why}. There, an epoch may read its"
                ' task\'s whole state, and on_barrier="carry" waits for requests, like "drain": check the log of the'
                " executors, or set spark.pillarbox.homes to off if this platform cannot start processes"
            )
    return None


def slow_copies(snapshot: Snapshot) -> str | None:
    for vertex in last_reports(_recent(snapshot)).values():
        for name, took in vertex.counters.items():
            uid, is_copies, kind = name.rpartition(f".{COPY_MS}")
            if is_copies and took > 1000 and took > 0.2 * vertex.busy_ms:
                return (
                    f"{took / 1000:.1f} s of an epoch were spent on copying {kind} values, which {uid!r}"
                    f" emits ({took / max(took, vertex.busy_ms):.0%} of its tasks' busy time): emit tuples or rows,"
                    f" declare pillarbox.immutable({kind}) if its instances never change, or call"
                    " env.enable_object_reuse()"
                )
    return None


QUERY_RULES = (
    *map(condition, CONDITIONS),
    executor_memory,
    container_memory,
    memory_runs_out,
    heavy_keys,
    skewed_tasks,
    stuck_watermark,
    piling_timers,
    endless_state,
    partitions_and_cores,
    back_pressure,
    tasks_in_workers,
    slow_copies,
)
