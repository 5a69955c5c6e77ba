"""Finds faults of a query as a whole (its conditions), and describes each in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._runtime.spark.running.stages import Stage
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox_tools.model.settings import is_batch, trigger_interval
from pillarbox_tools.model.snapshot import (
    Snapshot,
    SnapshotEpoch,
    SnapshotMoment,
    SnapshotRun,
    VertexId,
    last_reports,
    rows_per_second,
    vertex_id,
)
from pillarbox_tools.model.windows import (
    HOUR,
    MINUTE,
    NOW,
    QUARTER,
    moment_at,
    now_of,
    recent_epochs,
    rounded,
    usual_gap,
    within,
)

GONE, CRASH_LOOP, HUNG = "driver gone", "crash loop", "hung epoch"
FUTURE, BEHIND, SILENT = "watermark in the future", "falling behind", "silent source"
#: The conditions, worst first, each with the next step for the user.
CONDITIONS = {
    GONE: "check its machine and its log, and start it again; its checkpoint is intact",
    CRASH_LOOP: "check the newest failure, and make the supervisor wait longer between starts",
    HUNG: (
        "check the running stages on the page and in Spark's UI; the likely cause is a function or sink that waits for"
        " a service without a timeout"
    ),
    FUTURE: (
        "drop or correct such records before event time is assigned; the watermark never goes back, so restart from an"
        " earlier savepoint, or from an earlier copy of the checkpoint"
    ),
    BEHIND: "raise the parallelism with pillarbox rescale, or find the slowest operator on the page",
    SILENT: "check the source and its producers; if no input is expected, nothing is wrong with the query",
}

_HEARD = 3 * MINUTE
_SILENT = 4 * MINUTE
# An epoch hangs if it takes longer than 30 s, ten times the median, and twice the longest epoch of two hours.
_HUNG, _USUAL, _LONGEST = 30_000, 10, 2
_FIRST_EPOCH = 5 * MINUTE
_CRASHES, _LOOP = 3, 30 * MINUTE
_FEW = 3
_NAMED = 3
# The rate is zero after at least this time (milliseconds) and this many usual gaps without input.
_QUIET, _GAPS = 30_000, 3


@dataclass(frozen=True)
class Condition:
    """A fault of the query as a whole.

    Attributes:
        since: when the condition began (Unix time in ms).
    """

    name: str
    since: int
    line: str


def conditions_of(snapshot: Snapshot) -> list[Condition]:
    """Return the query's conditions, worst first. An ended query can only have a crash loop."""
    now = now_of(snapshot)
    is_running = snapshot.run.ended is None and snapshot.run.status == "running"
    gone = _gone(snapshot, now) if is_running else None
    conditions = [gone, _crash_loop(snapshot, now)]
    if is_running and gone is None:
        conditions += [check(snapshot, now) for check in (_hung, _future, _behind, _silent)]
    return [condition for condition in conditions if condition is not None]


def _gone(snapshot: Snapshot, now: int) -> Condition | None:
    heard = last_report_at(snapshot)
    if snapshot.is_live or now - heard <= _HEARD:
        return None
    return Condition(GONE, heard, f"Driver silent for {duration(now - heard)}; the data below is from {clock(heard)}")


def last_report_at(snapshot: Snapshot) -> int:
    return max(snapshot.at, 0 if snapshot.heartbeat is None else snapshot.heartbeat.at)


def _crash_loop(snapshot: Snapshot, now: int) -> Condition | None:
    runs = [snapshot.run, *snapshot.earlier]
    crashed = [run for run in runs if run.has_crashed and _end(run) > now - _LOOP]
    if len(crashed) < _CRASHES or now - _end(crashed[0]) > NOW:
        return None
    failure = next((run.failures[-1] for run in crashed if run.failures), None)
    error = "" if failure is None else f"; last error: {(failure.message or failure.error).splitlines()[0]}"
    started = sum(run.began > now - _LOOP for run in runs)
    line = f"Started {started} times in {duration(_LOOP)}, and failed {len(crashed)}{error}"
    return Condition(CRASH_LOOP, crashed[-1].began, line)


def _end(run: SnapshotRun) -> int:
    return run.ended or (run.moments[-1].at if run.moments else run.began)


def _hung(snapshot: Snapshot, now: int) -> Condition | None:
    beat = snapshot.heartbeat
    if beat is None or beat.epoch is None or beat.since is None:
        return None
    took = max(beat.at, snapshot.at if snapshot.is_live else 0) - beat.since
    if snapshot.epochs:
        usual = round(median(epoch.duration for epoch in snapshot.epochs))
        # For a query with a longer epoch each hour.
        longest = [moment.longest for moment in within(snapshot, 2 * HOUR)]
        longest += [epoch.duration for epoch in snapshot.epochs]
        limit, comparison = max(_HUNG, _USUAL * usual, _LONGEST * max(longest)), f" (usually {duration(usual)})"
    else:
        limit, comparison = _FIRST_EPOCH, ", and no epoch has ended yet"
    if took <= limit:
        return None
    line = f"Epoch {beat.epoch} has run for {duration(took)}{comparison}{_not_done(snapshot, beat)}"
    return Condition(HUNG, beat.since, line)


def _not_done(snapshot: Snapshot, beat: Heartbeat) -> str:
    stages = [stage for stage in beat.stages if stage.completed < stage.tasks]
    lines = [_of_stage(snapshot, stage) for stage in ([stage for stage in stages if stage.active] or stages[:1])]
    return f": {'; '.join(lines)}" if lines else ""


def _of_stage(snapshot: Snapshot, stage: Stage) -> str:
    names = [repr(vertex.uid or vertex.name) for vertex in snapshot.vertices if vertex.level == stage.level]
    if len(names) > _NAMED:
        names[_NAMED:] = [f"{len(names) - _NAMED} others"]
    left, hosts = stage.tasks - stage.completed, ", ".join(stage.hosts)
    return (
        f"{left} of {stage.tasks} tasks of {' and '.join(names) or f'stage {stage.number} of Spark'}"
        f"{f', on {hosts},' if hosts else ''} {'is' if left == 1 else 'are'} not done"
    )


def _future(snapshot: Snapshot, now: int) -> Condition | None:
    def future(epochs: Sequence[SnapshotEpoch]) -> dict[VertexId, int]:
        watermarks = {key: vertex.watermark or 0 for key, vertex in last_reports(epochs).items()}
        return {key: watermark for key, watermark in watermarks.items() if now + HOUR < watermark < MAX_WATERMARK}

    if not (newest := future(snapshot.epochs)):
        return None
    key, watermark = next(iter(newest.items()))
    since = next(epoch.end for epoch in snapshot.epochs if key in future([epoch]))
    name = name_of(snapshot, key)
    return Condition(FUTURE, since, f"Event time of {name} is at {date(watermark)}: records until then are late")


def name_of(snapshot: Snapshot, vertex: VertexId) -> str:
    names = {vertex_id(part): part.uid or part.name for part in snapshot.vertices}
    return repr(names.get(vertex, f"vertex {vertex[1]}"))


def _behind(snapshot: Snapshot, now: int) -> Condition | None:
    moments = snapshot.run.moments
    if not moments or is_batch(snapshot.run.settings):
        return None
    last = moments[-1]
    lately = [moment for moment in moments if moment.at > last.at - NOW]
    lately = lately if len(lately) > 1 else moments[-2:]
    before = moment_at(moments, min(last.at - QUARTER, lately[0].at - 1))
    span = last.at - before.at
    condition = None
    if span >= NOW // 2 and _is_recent(snapshot, last.at):
        if last.backlog is not None and before.backlog is not None:
            condition = _by_backlog(snapshot, before, lately)
        elif last.newest is not None and before.newest is not None:
            condition = _by_event_time(last, before, moment_at(moments, last.at - NOW))
    return condition or behind_interval(snapshot)


def _by_backlog(snapshot: Snapshot, before: SnapshotMoment, lately: Sequence[SnapshotMoment]) -> Condition | None:
    last = lately[-1]
    assert last.backlog is not None and before.backlog is not None
    rows = snapshot.newest.rows if snapshot.newest is not None else 0
    grew = last.backlog - before.backlog
    # The growth must exceed the input of one epoch, which is normal, and must last, unlike after a burst of input.
    lowest = min(moment.backlog or 0 for moment in lately)
    is_growing = lowest - before.backlog > rows and last.backlog > (lately[0].backlog or 0)
    if not is_growing or last.backlog <= 2 * rows:
        return None
    rate = 1000 * grew / (last.at - before.at)
    return Condition(
        BEHIND,
        before.at,
        f"{last.backlog:,} rows behind, growing by {rate:,.0f} a second; the query never catches up at this rate",
    )


def _by_event_time(last: SnapshotMoment, before: SnapshotMoment, recent: SnapshotMoment) -> Condition | None:
    assert last.newest is not None and before.newest is not None
    age, was = last.at - last.newest, before.at - before.newest
    grows = age - was > 0.5 * (last.at - before.at) and age > recent.at - (recent.newest or 0)
    if not grows or age <= 2 * MINUTE or last.newest <= before.newest:
        return None
    return Condition(BEHIND, before.at, f"The newest records are {duration(age)} old when they are read, and get older")


def behind_interval(snapshot: Snapshot) -> Condition | None:
    interval = trigger_interval(snapshot.run.settings)
    epochs = recent_epochs(snapshot, _FEW)
    if not interval or len(epochs) < _FEW or not _is_recent(snapshot, epochs[-1].end):
        return None
    usual = median(epoch.duration for epoch in epochs)
    if usual <= interval:
        return None
    return Condition(
        BEHIND,
        epochs[0].began,
        f"An epoch takes {usual / 1000:.1f} s, but the trigger's interval is {interval / 1000:g} s",
    )


def _is_recent(snapshot: Snapshot, at: int) -> bool:
    return now_of(snapshot) - at <= max(NOW, usual_gap(snapshot.run.moments) * 3 // 2)


def _silent(snapshot: Snapshot, now: int) -> Condition | None:
    if is_batch(snapshot.run.settings) or not (snapshot.is_live or snapshot.heartbeat is not None):
        return None
    beat = snapshot.heartbeat
    if beat is not None and beat.since is not None and beat.at - beat.since > MINUTE:
        return None
    came = input_at(snapshot)
    silent = now - (came or snapshot.run.began)
    if silent <= max(_SILENT, _usual_silence(snapshot)):
        return None
    when = "no rows since the start" if came is None else f"last rows at {clock(came)}"
    return Condition(SILENT, came or snapshot.run.began, f"No input for {duration(silent)}; {when}")


def input_at(snapshot: Snapshot) -> int | None:
    ends = [epoch.end for epoch in snapshot.epochs if epoch.rows]
    # A moment may also end with epochs without rows.
    return max(ends or [moment.at for moment in snapshot.run.moments if moment.rows], default=None)


def rate_now(snapshot: Snapshot) -> float | None:
    """Return the input rate (rows per second). 0 after a while without input, None if unknown."""
    rate, came = rows_per_second(snapshot.epochs), input_at(snapshot)
    if rate is None or came is None or snapshot.run.ended is not None:
        return rate
    return 0.0 if now_of(snapshot) - came > max(_QUIET, _usual_silence(snapshot)) else rate


def _usual_silence(snapshot: Snapshot) -> int:
    gap = usual_gap([moment for moment in snapshot.run.moments if moment.rows])
    return _GAPS * max(gap, trigger_interval(snapshot.run.settings) or 0)


def lag_now(snapshot: Snapshot) -> int | None:
    lag = next((moment for moment in reversed(snapshot.run.moments) if moment.lag is not None), None)
    watermarks = {vertex.watermark for vertex in last_reports(snapshot.epochs).values()} - {None}
    has_ended = watermarks == {MAX_WATERMARK}
    if lag is None or lag.lag is None or has_ended:
        return None
    return lag.lag if snapshot.run.ended is not None else lag.lag + max(0, now_of(snapshot) - lag.at)


def duration(ms: int) -> str:
    return rounded(ms) if ms >= 10_000 else f"{ms / 1000:.1f} s"


def clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1000, timezone.utc):%H:%M} UTC"


def date(at: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"
