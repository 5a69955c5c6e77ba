"""Counts service calls in the newest epochs, by operator and by budget."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox._operators.budgets.gate import BUDGET_COUNTERS
from pillarbox_tools.model.snapshot import SnapshotEpoch

#: Counters of an operator that calls a service for each record or batch.
CALL_COUNTERS = (
    *("requests", "retried", "completed", "failed", "timed_out", "dropped", "cache_hits", "in_flight"),
    *("in_flight_max", "latency_p50_us", "latency_p95_us", "latency_p99_us", "rate_limited_ms"),
)
OUTCOMES = ("completed", "failed", "timed_out")
_SUMS = ("calls", "calls_reused", "timed_out", "rate_limited_ms")
_LARGEST = ("in_flight_max", "longest_key", "blocked_ms")
#: Counters of an async keyed function.
KEYED_COUNTERS = ("in_flight", *_SUMS, *_LARGEST)
#: The name of a budget's counter: (operator's uid, budget's name, counter).
BUDGET_COUNTER = re.compile(rf"(.+?)\.budget\.(.+)\.({'|'.join(BUDGET_COUNTERS)})", re.DOTALL)


@dataclass
class KeyedCalls:
    """An async keyed operator in the newest epochs.

    Attributes:
        in_flight: number of unfinished records and timers at the end of the newest epoch.
        in_flight_max: maximum number of records and timers that ran at the same time in one subtask.
        calls: number of ``ctx.call`` calls that reached the service.
        calls_reused: number of ``ctx.call`` calls that returned a recorded answer.
        longest_key: maximum number of records that waited for the same key.
        hot_key: this key as text, or None if no record waited.
        rate_limited_ms: how long calls waited for a budget.
        blocked_ms: duration of the longest step that blocked the task for more than a second, or 0.
    """

    uid: str
    in_flight: int = 0
    in_flight_max: int = 0
    calls: int = 0
    calls_reused: int = 0
    timed_out: int = 0
    longest_key: int = 0
    hot_key: str | None = None
    rate_limited_ms: int = 0
    blocked_ms: int = 0

    def add(self, counter: str, count: int) -> None:
        if counter in _SUMS:
            count += getattr(self, counter)
        elif counter in _LARGEST:
            count = max(count, getattr(self, counter))
        setattr(self, counter, count)


@dataclass
class BudgetUse:
    """The use of a budget by all operators in the newest epochs.

    Attributes:
        name: the budget's name, or for a ``job_rate_limit``, the operator's uid.
        granted: number of requests that began.
        spent: units that these requests cost.
        stops: number of answers, such as 429, that stopped the budget.
        probes: number of requests that an open circuit breaker let through.
        lost: number of booked slots that expired unused.
    """

    name: str
    granted: int = 0
    spent: int = 0
    refused: int = 0
    stops: int = 0
    probes: int = 0
    lost: int = 0


class CallCounters(NamedTuple):
    """The counters of the newest epochs.

    Attributes:
        calls: the newest counters of each operator that makes requests.
        counters: sums of all other counters.
    """

    calls: list[dict[str, str | int]]
    keyed_calls: list[KeyedCalls]
    budgets: list[BudgetUse]
    counters: dict[str, int]


def has_requests(uid: str, counters: Collection[str]) -> bool:
    """Return whether an operator has all three request counters. A single one may be a user's own counter."""
    return all(f"{uid}.{name}" in counters for name in OUTCOMES)


def budget_name(counted: str) -> str:
    return counted.lstrip("\0")


def counters_of(epochs: Sequence[SnapshotEpoch]) -> CallCounters:
    vertices = [(epoch.number, vertex) for epoch in epochs for vertex in epoch.vertices]
    names = {name for _, vertex in vertices for name in vertex.counters}
    # A counter `longest_key` identifies async keyed functions.
    callers = {uid for name in names if has_requests(uid := name.rpartition(".")[0], names)}
    keyed = {uid: KeyedCalls(uid) for name in sorted(names) if (uid := name.removesuffix(".longest_key")) != name}
    calls: dict[str, dict[str, str | int]] = {}
    budgets: dict[str, BudgetUse] = {}
    others: dict[str, int] = {}
    for number, vertex in vertices:
        for uid, key in vertex.hot_keys.items():
            if uid in keyed and vertex.counters.get(f"{uid}.longest_key", 0) >= keyed[uid].longest_key:
                keyed[uid].hot_key = key
        for name, count in vertex.counters.items():
            uid, _, counter = name.rpartition(".")
            if match := BUDGET_COUNTER.fullmatch(name):
                use = budgets.setdefault(match[2], BudgetUse(budget_name(match[2])))
                setattr(use, match[3], getattr(use, match[3]) + count)
            elif counter in KEYED_COUNTERS and uid in keyed:
                keyed[uid].add(counter, count)
            elif counter in CALL_COUNTERS and uid in callers:
                calls[uid] = {**calls.get(uid, {"uid": uid}), "epoch": number, counter: count}
            else:
                others[name] = others.get(name, 0) + count
    return CallCounters(list(calls.values()), list(keyed.values()), list(budgets.values()), others)
