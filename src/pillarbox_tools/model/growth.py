"""Estimates how fast state grows, and when workers will run out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from pillarbox_tools.model.settings import bytes_in, number_in
from pillarbox_tools.model.snapshot import Snapshot
from pillarbox_tools.model.windows import DAY, HOUR, MINUTE, as_of

# A shorter history has no meaningful slope: a new process grows until it has seen all kinds of records.
_SHORTEST = 10 * MINUTE
_SHORTEST_OF_MEMORY = 6 * HOUR
_FEWEST = 5


@dataclass(frozen=True)
class Growth:
    """The growth of one operator's state.

    Attributes:
        uid: the uid of the first operator in the chain.
        per_day: growth in bytes per day, by linear regression over the last day, or None if unknown.
    """

    uid: str
    bytes: int
    keys: int
    per_day: float | None


@dataclass(frozen=True)
class MemoryGrowth:
    """The memory of the largest worker process. None means unknown.

    Attributes:
        limit: the limit in bytes. Also None if there is no limit.
        per_day: growth in bytes per day.
        full_at: when memory reaches the limit at this rate (Unix time in ms). Also None if never.
    """

    bytes: int | None
    limit: int | None
    per_day: float | None
    full_at: int | None
    message: str


def growth_of(snapshot: Snapshot) -> list[Growth]:
    moments, since = snapshot.run.moments, as_of(snapshot) - DAY
    if not moments:
        return []
    history = [(moment.at, moment.state_bytes) for moment in moments if moment.at >= since]
    growths = []
    for uid, size in moments[-1].state_bytes.items():
        points = [(at, sizes[uid]) for at, sizes in history if uid in sizes]
        growths.append(Growth(uid, size, moments[-1].keys.get(uid, 0), slope(points)))
    return growths


def memory_of(snapshot: Snapshot) -> MemoryGrowth:
    since = as_of(snapshot) - DAY
    moments = [moment for moment in snapshot.run.moments if moment.process_bytes is not None and moment.at >= since]
    limit = _limit(snapshot.run.settings)
    used = moments[-1].process_bytes if moments else None
    per_day = slope([(moment.at, moment.process_bytes or 0) for moment in moments], _SHORTEST_OF_MEMORY)
    full_at = None
    if limit is None:
        message = "no limit: spark.executor.pyspark.memory is not set"
    elif used is None or per_day is None:
        message = "growth not yet known"
    elif per_day <= 0:
        message = "not growing"
    else:
        full_at = moments[-1].at + round(max(0, limit - used) / per_day * DAY)
        message = "full at this time at the current rate of growth"
    return MemoryGrowth(used, limit, per_day, full_at, message)


def slope(points: Sequence[tuple[int, int]], shortest: int = _SHORTEST) -> float | None:
    if len(points) < _FEWEST or points[-1][0] - points[0][0] < shortest:
        return None
    return linear_regression([time / DAY for time, _ in points], [size for _, size in points]).slope


def _limit(settings: Mapping[str, str]) -> int | None:
    """Return a worker's memory limit: the setting divided by the executor's cores, as in Spark."""
    limit, cores = bytes_in(settings, "spark.executor.pyspark.memory"), number_in(settings, "spark.executor.cores")
    return limit if limit is None else limit // max(1, cores or 1)
