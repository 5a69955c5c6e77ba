"""Stretches of a query's time: what is true now, in the last quarter of an hour, in the last hour and day.

A fault is *present* if it happened within the last five minutes (or in the newest moment, if epochs are rarer), so each
rule that asks for it speaks within five minutes of its beginning, and is silent five minutes after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from pillarbox_tools.model.snapshot import EpochRun, Moment, Snapshot

MINUTE = 60_000
NOW, QUARTER, HOUR, DAY = 5 * MINUTE, 15 * MINUTE, 60 * MINUTE, 24 * 60 * MINUTE
# How many of the last gaps between moments tell how rare epochs are.
_GAPS = 10

T = TypeVar("T")


def as_of(snapshot: Snapshot) -> int:
    """Return the newest time that a snapshot knows of (epoch ms)."""
    moments = snapshot.run.moments
    return max(snapshot.at, moments[-1].at) if moments else snapshot.at


def now_of(snapshot: Snapshot) -> int:
    """Return the time at which a snapshot is looked at (epoch ms)."""
    return max(as_of(snapshot), snapshot.read_at or 0)


def within(snapshot: Snapshot, span: int) -> list[Moment]:
    """Return the moments of the last ``span`` ms; if epochs are rarer than that, the newest one."""
    moments, now = snapshot.run.moments, as_of(snapshot)
    found = [each for each in moments if each.at > now - span]
    if found or not moments:
        return found
    return moments[-1:] if now - moments[-1].at <= usual_gap(moments) * 3 // 2 else []


def usual_gap(moments: Sequence[Moment]) -> int:
    """Return the longest of the last times between two moments (ms); 0: there are not two."""
    last = moments[-_GAPS - 1 :]
    return max((later.at - earlier.at for earlier, later in pairwise(last)), default=0)


def moment_at(moments: Sequence[Moment], at: int) -> Moment:
    """Return the last moment that was not later than a time, or the first one."""
    return next((each for each in reversed(moments) if each.at <= at), moments[0])


@dataclass(frozen=True)
class Fault:
    """A fault that is present.

    Attributes:
        count: how often it happened in the last ``span`` ms, of ``of`` times.
        since: the first moment of those without a gap in which it happened (epoch ms).
    """

    count: int
    of: int
    span: int
    since: int

    @property
    def share(self) -> float:
        """Its share, from 0 to 1."""
        return self.count / self.of if self.of else 0.0


def fault_in(
    snapshot: Snapshot,
    count: Callable[[Moment], int],
    of: Callable[[Moment], int],
    *,
    least: int,
    share: float,
    window: int = QUARTER,
) -> Fault | None:
    """Return a fault that is present, and more frequent now or in the window than a share.

    Args:
        count: how often it happened in a moment, ``of`` so many times.
        least: it has to happen more often than this.
    """
    if not any(count(each) for each in within(snapshot, NOW)):
        return None
    for span in (NOW, window):
        moments = within(snapshot, span)
        bad, every = sum(map(count, moments)), sum(map(of, moments))
        if bad > least and bad > share * every:
            return Fault(bad, every, span, _since(snapshot.run.moments, lambda each: count(each) > 0))
    return None


def _since(moments: Sequence[Moment], has: Callable[[Moment], bool]) -> int:
    since = moments[-1].at
    for place in range(len(moments) - 1, -1, -1):
        if has(moments[place]):
            since = moments[place - 1].at if place else moments[place].at
        elif since - moments[place].at > NOW:
            break
    return since


def recent_epochs(snapshot: Snapshot, fewest: int, span: int = NOW) -> list[EpochRun]:
    """Return the epochs with rows of the last ``span`` ms, and at least as many as ``fewest`` if there are."""
    now = as_of(snapshot)
    rows = [each for each in snapshot.epochs if each.rows]
    recent = [each for each in rows if each.began + each.duration > now - span]
    return recent if len(recent) >= fewest else rows[-fewest:]


def rounded(ms: int) -> str:
    """Return a time for people in its largest unit, such as ``12 min``."""
    seconds = ms / 1000
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
