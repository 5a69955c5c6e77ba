"""How fast state grows, and when the memory of a worker runs out if it keeps growing at this rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pillarbox_tools.model.snapshot import Snapshot
from pillarbox_tools.model.windows import DAY, HOUR, MINUTE, as_of

# Over less than this, or fewer moments, a slope says nothing. (A new process takes more memory until it has seen all
# kinds of records.)
_SHORTEST = 10 * MINUTE
_SHORTEST_OF_MEMORY = 6 * HOUR
_FEWEST = 5


@dataclass(frozen=True)
class Growth:
    """The state of one operator over time.

    Attributes:
        uid: of the operator that heads the vertex.
        bytes: the size of its state now, and ``keys``: its keys.
        per_day: bytes that it gains in a day, by a straight line through the last day; None: it is not known yet.
    """

    uid: str
    bytes: int
    keys: int
    per_day: float | None


@dataclass(frozen=True)
class Memory:
    """The memory of the fullest worker process.

    Attributes:
        bytes: its resident memory now; None: it is not known.
        limit: what it may use; None: no setting says it.
        per_day: bytes that it gains in a day; None: it is not known yet.
        full_at: when it reaches the limit if it keeps growing at this rate (epoch ms); None: it does not, or that is
            not known.
        message: all of that for people.
    """

    bytes: int | None
    limit: int | None
    per_day: float | None
    full_at: int | None
    message: str


def growth_of(snapshot: Snapshot) -> list[Growth]:
    """Return the growth of the state of each vertex with state in this run."""
    moments, since = snapshot.run.moments, as_of(snapshot) - DAY
    if not moments:
        return []
    found = []
    for uid, size in moments[-1].state_bytes.items():
        points = [(each.at, each.state_bytes[uid]) for each in moments if uid in each.state_bytes and each.at >= since]
        found.append(Growth(uid, size, moments[-1].keys.get(uid, 0), slope(points)))
    return found


def memory_of(snapshot: Snapshot) -> Memory:
    """Return what is known of the memory of the fullest worker."""
    since = as_of(snapshot) - DAY
    moments = [each for each in snapshot.run.moments if each.process_bytes is not None and each.at >= since]
    limit = _limit(snapshot.run.settings)
    used = moments[-1].process_bytes if moments else None
    per_day = slope([(each.at, each.process_bytes or 0) for each in moments], _SHORTEST_OF_MEMORY)
    full_at = None
    if limit is None:
        message = "no limit is known: spark.executor.pyspark.memory is not set"
    elif used is None or per_day is None:
        message = "it is not known yet how it grows"
    elif per_day <= 0:
        message = "it does not grow"
    else:
        full_at = moments[-1].at + round(max(0, limit - used) / per_day * DAY)
        message = "it is full at this time if it keeps growing at this rate"
    return Memory(used, limit, per_day, full_at, message)


def slope(points: Sequence[tuple[int, int]], shortest: int = _SHORTEST) -> float | None:
    """Return the slope of the straight line through points of a time (epoch ms) and a size, in size per day.

    None: there are too few points, or they lie too close to each other.
    """
    if len(points) < _FEWEST or points[-1][0] - points[0][0] < shortest:
        return None
    times = [time / DAY for time, _ in points]
    mean, middle = sum(times) / len(points), sum(size for _, size in points) / len(points)
    spread = sum((time - mean) ** 2 for time in times)
    return sum((time - mean) * (size - middle) for time, (_, size) in zip(times, points)) / spread


def _limit(settings: Mapping[str, str]) -> int | None:
    """Return what a worker process may use: Spark divides the setting by the executor's cores."""
    limit, cores = bytes_of(settings.get("spark.executor.pyspark.memory")), settings.get("spark.executor.cores", "")
    return limit if limit is None else limit // max(1, int(cores) if cores.isdigit() else 1)


_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def bytes_of(setting: str | None, unit: str = "m") -> int | None:
    """Return the number of bytes that a setting of Spark's says, such as ``2g``; None: it is not set, or is no size.

    Args:
        unit: of a number alone.
    """
    text = (setting or "").strip().lower().removesuffix("ib").removesuffix("b")
    if not text:
        return None
    number, letter = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, unit)
    return int(number) * _UNITS[letter] if number.isdigit() else None
