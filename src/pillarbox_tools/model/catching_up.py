"""Estimates a query's progress through its backlog (unread input)."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox_tools.model.condition import behind_interval
from pillarbox_tools.model.epochs import rows_left
from pillarbox_tools.model.snapshot import Snapshot, rows_per_second
from pillarbox_tools.model.windows import rounded

_RECENT = 10
# Event-time lag (milliseconds) below which a query keeps up.
_LAG = 60_000


@dataclass(frozen=True)
class CatchingUp:
    """The progress of a query in its current run.

    Attributes:
        rows_per_second: average rate in recent epochs.
        share: processed fraction of the input, from 0 to 1, or None if the total is unknown.
        left_ms: remaining time at this rate, or None if unknown.
    """

    epochs: int
    rows: int
    rows_per_second: float
    share: float | None
    left_ms: int | None
    is_behind: bool


def catching_up(snapshot: Snapshot, *, is_batch: bool) -> CatchingUp | None:
    """Return the query's progress, or None before the first epoch has ended.

    The backlog is exact for sources that report their newest offsets, such as Kafka. For other sources, it is estimated
    from event time, except in a batch, whose last event time is unknown.
    """
    epochs, moments = snapshot.epochs, snapshot.run.moments
    if not epochs or not moments:
        return None
    rows = sum(moment.rows for moment in moments)
    rate = rows_per_second(epochs[-_RECENT:]) or 0.0
    left = rows_left(epochs[-1])
    lags = [moment.lag for moment in moments if moment.lag is not None]
    share, left_ms = None, None
    is_behind = is_batch or behind_interval(snapshot) is not None
    if left is not None:
        is_behind |= left > epochs[-1].rows
        share = rows / (rows + left) if rows + left else 1.0
        left_ms = round(1000 * left / rate) if rate else None
    elif not is_batch and lags and lags[0] > 0:
        is_behind |= _LAG < lags[-1] < lags[0]
        share = min(1.0, max(0.0, 1 - lags[-1] / lags[0]))
        since = moments[-1].at - moments[0].at
        left_ms = round(since * (1 - share) / share) if share else None
    return CatchingUp(sum(moment.epochs for moment in moments), rows, rate, share, left_ms, is_behind)


def line_of(snapshot: Snapshot, *, is_batch: bool) -> str | None:
    progress = catching_up(snapshot, is_batch=is_batch)
    if progress is not None and not progress.is_behind:
        return None
    parts: list[str] = []
    if progress is not None:
        parts += [
            f"{progress.epochs:,} epoch{'' if progress.epochs == 1 else 's'}",
            f"{progress.rows:,} rows",
            f"{progress.rows_per_second:,.0f} rows/s",
        ]
        if progress.share is not None:
            parts.append(f"{min(0.99, progress.share):.0%} done")
        if progress.left_ms:
            parts.append(f"about {rounded(progress.left_ms)} left")
    elif not is_batch:
        return None
    if snapshot.heartbeat is not None and (stages := snapshot.heartbeat.stages):
        done, tasks = sum(stage.completed for stage in stages), sum(stage.tasks for stage in stages)
        parts.append(f"{done:,} of {tasks:,} tasks of the next epoch")
    return " · ".join(parts) or None
