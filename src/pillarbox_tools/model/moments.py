"""The epochs of a run, added up by the minute: a bounded number of moments, however long the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import Plan
from pillarbox_tools.model.epochs import rows_left
from pillarbox_tools.model.snapshot import EpochRun, Moment

_MINUTE = 60_000
# There are up to this many moments: the last four hours by the minute and, in less detail, all the time before. (So
# an hour and a day ago are found by their times, and not by their places in the list.)
_MOST = 480
_SUMS = ("epochs", "rows", "duration", "busy_ms", "back_pressured_ms", "repeated", "home_restarts", "fallbacks")
# Counters whose values at the end are no sums.
_LARGEST = ("in_flight_max", "latency_p50_us", "latency_p95_us", "latency_p99_us", "rate_limited_ms", "in_flight")


class Moments:
    """Adds up epochs. One thread at a time may call its methods."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []

    def add(self, epoch: EpochRun, plan: Plan | None) -> None:
        """Add an epoch."""
        new = moment_of(epoch, plan)
        if self._moments and new.at // _MINUTE == self._moments[-1].at // _MINUTE:
            self._moments[-1] = together(self._moments[-1], new)
            return
        self._moments.append(new)
        if len(self._moments) > _MOST:
            old, rest = self._moments[: _MOST // 2], self._moments[_MOST // 2 :]
            pairs = [together(one, other) for one, other in zip(old[::2], old[1::2])]
            self._moments = pairs + rest

    def all(self) -> list[Moment]:
        """Return all moments, the oldest first."""
        return list(self._moments)


def moment_of(epoch: EpochRun, plan: Plan | None) -> Moment:
    """Return an epoch as a moment."""
    uids = {} if plan is None else {(each.program, each.number): each.uid for each in plan.vertices}
    stateful = [each for each in epoch.vertices if each.state_bytes is not None]
    watermarks = [each.watermark for each in stateful if each.watermark is not None]
    end = epoch.began + epoch.duration
    times = [each.event_times[1] for each in epoch.tasks if each.is_source and each.event_times]
    lowest = min(watermarks, default=None)
    counters: dict[str, int] = {}
    for vertex in epoch.vertices:
        counters = _counted(counters, vertex.counters)
    return Moment(
        at=end,
        epochs=1,
        first=epoch.number,
        last=epoch.number,
        rows=epoch.rows,
        duration=epoch.duration,
        longest=epoch.duration,
        busy_ms=sum(each.busy_ms for each in epoch.vertices),
        back_pressured_ms=sum(each.back_pressured_ms for each in epoch.vertices),
        state_bytes=_by_uid((_uid(uids, each), each.state_bytes or 0) for each in stateful),
        keys=_by_uid((_uid(uids, each), each.keys or 0) for each in stateful),
        timers=sum(each.timers or 0 for each in stateful),
        lag=None if lowest is None or abs(lowest) > 1 << 60 else end - lowest,
        counters=counters,
        repeated=sum(each.repeated for each in epoch.vertices),
        process_bytes=max((each.process_bytes for each in epoch.tasks if each.process_bytes), default=None),
        home_restarts=sum(each.home_restarts for each in epoch.vertices),
        fallbacks=sum(sum(each.fallbacks.values()) for each in epoch.vertices),
        inputs=_inputs(epoch, plan),
        backlog=rows_left(epoch),
        newest=max(times, default=None),
    )


def _inputs(epoch: EpochRun, plan: Plan | None) -> dict[str, int]:
    """Return how many records each operator received, by uid; an operator without a uid is left out."""
    found: dict[str, int] = {}
    chains = {} if plan is None else {(each.program, each.number): each.operators for each in plan.vertices}
    for vertex in epoch.vertices:
        for place, operator in enumerate(chains.get((vertex.program, vertex.number), ())):
            if place and place >= len(vertex.operators):
                break
            count = vertex.operators[place][0] if place else vertex.records_in
            if operator.uid:
                found[operator.uid] = found.get(operator.uid, 0) + count
    return found


def _by_uid(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up counts by uid: two programs of a query may have an operator of one uid."""
    found: dict[str, int] = {}
    for uid, count in counts:
        found[uid] = found.get(uid, 0) + count
    return found


def _uid(uids: dict[tuple[str, int], str], vertex: OperatorReport) -> str:
    return uids.get((vertex.program, vertex.number)) or f"{vertex.program} {vertex.number}"


def together(one: Moment, other: Moment) -> Moment:
    """Return two moments as one, of which ``other`` is the later."""
    summed = {name: getattr(one, name) + getattr(other, name) for name in _SUMS}
    # The other fields are as they were at the end. (In an epoch, only those tasks run that have something to do.)
    end = {each.name: getattr(other, each.name) for each in fields(Moment)}
    end |= {"state_bytes": {**one.state_bytes, **other.state_bytes}, "keys": {**one.keys, **other.keys}}
    end["inputs"] = _counted(one.inputs, other.inputs)
    end["newest"] = one.newest if other.newest is None else max(other.newest, one.newest or other.newest)
    end["process_bytes"] = other.process_bytes or one.process_bytes
    return Moment(
        **{
            **end,
            **summed,
            "first": one.first,
            "longest": max(one.longest, other.longest),
            "counters": _counted(one.counters, other.counters),
        }
    )


def _counted(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    found = dict(one)
    for name, count in other.items():
        largest = name.rpartition(".")[2] in _LARGEST
        found[name] = max(found.get(name, 0), count) if largest else found.get(name, 0) + count
    return found
