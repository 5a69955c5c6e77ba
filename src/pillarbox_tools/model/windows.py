"""Time windows of a query's history: 5 minutes ("now"), 15 minutes, an hour, and a day.

A fault is *present* if it occurred in the last five minutes. If epochs are rarer, it is present if it occurred in the
newest moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch, SnapshotMoment

MINUTE = 60_000
NOW, QUARTER, HOUR, DAY = 5 * MINUTE, 15 * MINUTE, 60 * MINUTE, 24 * 60 * MINUTE
_GAPS = 10


def as_of(snapshot: Snapshot) -> int:
    moments = snapshot.run.moments
    return max(snapshot.at, moments[-1].at) if moments else snapshot.at


def now_of(snapshot: Snapshot) -> int:
    return max(as_of(snapshot), snapshot.read_at or 0)


def within(snapshot: Snapshot, span: int) -> list[SnapshotMoment]:
    """Return the moments in the last ``span`` ms, or the newest moment if epochs are rarer."""
    moments, now = snapshot.run.moments, as_of(snapshot)
    recent = [moment for moment in moments if moment.at > now - span]
    if recent or not moments:
        return recent
    return moments[-1:] if now - moments[-1].at <= usual_gap(moments) * 3 // 2 else []


def usual_gap(moments: Sequence[SnapshotMoment]) -> int:
    last = moments[-_GAPS - 1 :]
    return max((later.at - earlier.at for earlier, later in pairwise(last)), default=0)


def moment_at(moments: Sequence[SnapshotMoment], at: int) -> SnapshotMoment:
    return next((moment for moment in reversed(moments) if moment.at <= at), moments[0])


@dataclass(frozen=True)
class WindowFault:
    """A fault that is present: ``count`` events out of ``of`` have failed in the last ``span`` ms.

    Attributes:
        since: when the fault began (Unix time in ms). A pause of more than five minutes ends a fault.
    """

    count: int
    of: int
    span: int
    since: int

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0


def fault_in(
    snapshot: Snapshot,
    count: Callable[[SnapshotMoment], int],
    of: Callable[[SnapshotMoment], int],
    *,
    least: int,
    share: float,
    window: int = QUARTER,
) -> WindowFault | None:
    """Return a fault if it occurred more than ``least`` times, and in more than ``share`` of all cases.

    Both must hold in the last five minutes, or else in the last ``window`` ms. ``count`` and ``of`` return a moment's
    numbers of faults and of cases.
    """
    if not any(count(moment) for moment in within(snapshot, NOW)):
        return None
    for span in (NOW, window):
        moments = within(snapshot, span)
        bad, every = sum(map(count, moments)), sum(map(of, moments))
        if bad > least and bad > share * every:
            return WindowFault(bad, every, span, _since(snapshot.run.moments, lambda moment: count(moment) > 0))
    return None


def _since(moments: Sequence[SnapshotMoment], has: Callable[[SnapshotMoment], bool]) -> int:
    since = moments[-1].at
    for index in range(len(moments) - 1, -1, -1):
        if has(moments[index]):
            since = moments[index - 1].at if index else moments[index].at
        elif since - moments[index].at > NOW:
            break
    return since


def recent_epochs(snapshot: Snapshot, fewest: int) -> list[SnapshotEpoch]:
    """Return the epochs with rows in the last five minutes, or the newest ``fewest`` epochs if these are more."""
    now = as_of(snapshot)
    rows = [epoch for epoch in snapshot.epochs if epoch.rows]
    recent = [epoch for epoch in rows if epoch.end > now - NOW]
    return recent if len(recent) >= fewest else rows[-fewest:]


def rounded(ms: int) -> str:
    seconds = ms / 1000
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
