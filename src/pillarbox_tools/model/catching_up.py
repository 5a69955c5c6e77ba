"""How far a query is with the input that waits for it: of a batch, or of a stream that is behind."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox_tools.model.condition import behind_interval
from pillarbox_tools.model.epochs import rows_left
from pillarbox_tools.model.snapshot import Snapshot, rows_per_second
from pillarbox_tools.model.windows import rounded

# How many epochs the rate is taken from.
_RECENT = 10
# Event time that lags by less is what a query has that keeps up (milliseconds).
_LAG = 60_000


@dataclass(frozen=True)
class CatchingUp:
    """How far a query is.

    Attributes:
        epochs: how many have ended in this run, and ``rows``: how many rows came in.
        rows_per_second: of the last epochs together.
        share: the share of the input that is done, from 0 to 1; None: nobody knows how much there is.
        left_ms: how long the rest takes at this rate; None: it is not known.
        is_behind: whether the query has more to do than to keep up with its input.
    """

    epochs: int
    rows: int
    rows_per_second: float
    share: float | None
    left_ms: int | None
    is_behind: bool


def catching_up(snapshot: Snapshot, *, is_batch: bool) -> CatchingUp | None:
    """Return how far a query is; None: no epoch has ended yet.

    How much is left is known where the source tells its newest offsets, as Kafka does. Else it is estimated from event
    time, which goes from where it was to now; of a batch it is not, as nobody knows where event time is to end.

    Args:
        is_batch: whether the query ends when its input does.
    """
    epochs, moments = snapshot.epochs, snapshot.run.moments
    if not epochs or not moments:
        return None
    rows = sum(each.rows for each in moments)
    rate = rows_per_second(epochs[-_RECENT:]) or 0.0
    left = rows_left(epochs[-1])
    lags = [each.lag for each in moments if each.lag is not None]
    share, left_ms = None, None
    if left is not None:
        share = rows / (rows + left) if rows + left else 1.0
        left_ms = round(1000 * left / rate) if rate else None
    elif not is_batch and lags and lags[0] > 0:
        share = min(1.0, max(0.0, 1 - lags[-1] / lags[0]))
        since = moments[-1].at - moments[0].at
        left_ms = round(since * (1 - share) / share) if share else None
    if left is not None:
        is_behind = left > epochs[-1].rows
    else:
        is_behind = bool(lags) and _LAG < lags[-1] < lags[0]
    is_behind = is_behind or behind_interval(snapshot) is not None
    return CatchingUp(sum(each.epochs for each in moments), rows, rate, share, left_ms, is_batch or is_behind)


def line_of(snapshot: Snapshot, *, is_batch: bool) -> str | None:
    """Return one line for people on how far a query is; None: there is nothing to say, as it keeps up."""
    found = catching_up(snapshot, is_batch=is_batch)
    if found is not None and not found.is_behind:
        return None
    parts: list[str] = []
    if found is not None:
        parts += [
            f"{found.epochs:,} epoch{'' if found.epochs == 1 else 's'}",
            f"{found.rows:,} rows",
            f"{found.rows_per_second:,.0f} rows/s",
        ]
        if found.share is not None:
            # (It is all done when the query says so.)
            parts.append(f"{min(0.99, found.share):.0%} done")
        if found.left_ms:
            parts.append(f"about {rounded(found.left_ms)} left")
    elif not is_batch:
        return None
    if snapshot.heartbeat is not None and (stages := snapshot.heartbeat.stages):
        done, tasks = sum(each.completed for each in stages), sum(each.tasks for each in stages)
        parts.append(f"{done:,} of {tasks:,} tasks of the next epoch")
    return " · ".join(parts) or None
