"""A budget's arithmetic. Callers pass times, in seconds of a monotonic clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox._operators.budgets.budget import BudgetLimits

#: A request may begin up to this time (seconds) after its slot. Thus, at most rate * (T + LATE) + 1 requests begin in
#: any T seconds.
LATE = 0.04
#: Slots are booked at most this many seconds ahead.
AHEAD = 0.1
# To save messages, a booking without slots is retried when this many seconds of slots are free.
_QUANTUM = 0.01
# Seconds of the halved rate after a pause that the service requested.
_HALF = 1.0
# A ceiling is charged in parts of this fraction. Each part is written to a file before it is spent.
_PART = 0.01
# Tolerance for sums of fractions.
_NEARLY = 1e-9
# Pause after a 429 without Retry-After (seconds).
STOP = 1.0


class AccountSlots(NamedTuple):
    """The answer to a booking: a slot for each request.

    Attributes:
        times: each request's earliest start.
        probes: whether this is a probe of an open circuit breaker. A probe is booked as a single request.
        period: when the ceiling's period began (Unix time in ms), or -1 without a ceiling.
    """

    times: list[float]
    probes: bool = False
    period: int = -1


class AccountRetry(NamedTuple):
    """The answer to a booking: no slot is available before ``at``."""

    at: float
    why: str = ""


class AccountRefusal(NamedTuple):
    """The answer to a booking: the requests must fail, because the exceeded budget has ``when_exceeded="fail"``."""

    why: str
    is_open: bool


class AccountReport(NamedTuple):
    """The outcome of requests.

    Attributes:
        units: the requests' cost minus their estimates.
        outcomes: whether each completed request succeeded, in order.
        probe: whether a probe of the circuit breaker succeeded, or None if there was no probe.
        stop: the pause that the service requested (seconds), or None.
        period: when the slots' period began (Unix time in ms), or -1. A later period's charge stays.
    """

    units: float = 0.0
    outcomes: tuple[bool, ...] = ()
    probe: bool | None = None
    stop: float | None = None
    unused: tuple[float, ...] = ()
    period: int = -1


@dataclass
class AccountPeriod:
    """The units charged against a ceiling in the current period.

    Attributes:
        began: time of the period's first request (Unix time in ms), or -1 before that request.
        spent: the charged units, including running requests' estimates.
        clock: the latest wall-clock time of a request (Unix time in ms).
    """

    began: int = -1
    spent: float = 0.0
    clock: int = 0

    def merge(self, other: AccountPeriod, length: int) -> None:
        """Merge another checkpoint's charge. The later period wins, then the higher charge."""
        self.clock = max(self.clock, other.clock)
        began = max(self.began, other.began)
        live = [period.spent for period in (self, other) if period.began + length > began]
        self.began, self.spent = began, max(live, default=0.0)


class Account:
    """One budget's slots, charged units, ceiling and circuit breaker. Not thread-safe.

    Args:
        now: the time of the first slot.
        written: whether charges are saved in a file, so that requests may spend only the saved :attr:`allowance`.
    """

    def __init__(self, limits: BudgetLimits, now: float, *, written: bool = False) -> None:
        self.limits = limits
        self.period = AccountPeriod()
        #: Units that may be spent in the period, according to the file.
        self.allowance: float = 0.0 if written else float("inf")
        self._next = now
        # End of the debt of units.
        self._solvent = now
        self._stopped = now
        self._half = now
        of = limits.breaker[1] if limits.breaker else 1
        self._outcomes: deque[bool] = deque(maxlen=of)
        # Time of an open breaker's next probe, or None for a closed breaker.
        self._open: float | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def book(self, estimates: Sequence[float], now: float, wall: int) -> AccountSlots | AccountRetry | AccountRefusal:
        if now < self._stopped:
            return AccountRetry(self._stopped)
        if self._open is not None and now < self._open:
            pause = f"{self._open - now:.1f} s"
            return self._exceeded(self._open, f"its circuit breaker is open for another {pause}", is_open=True)
        count = len(estimates) if self._open is None else 1
        if self.limits.ceiling is not None:
            self._begin_period(wall)
            count = min(count, self._affordable(estimates, self.limits.ceiling))
            if not count:
                end = self.period.began + self.limits.period - self.period.clock
                why = f"the ceiling of {self.limits.ceiling:g} units is reached for another {end / 1000:.0f} s"
                return self._exceeded(now + end / 1000, why)
            count = min(count, self._affordable(estimates, self.allowance))
            if not count:
                return AccountRetry(now + _QUANTUM)  # the file is being written
        times = self._times(estimates[:count], now)
        if isinstance(times, AccountRetry):
            return times
        self.period.spent += sum(estimates[: len(times)])
        if self._open is None:
            return AccountSlots(times, period=self.period.began)
        # Allows another probe, in case the first probe's process dies.
        self._open = now + self._pause
        return AccountSlots(times, probes=True, period=self.period.began)

    def _times(self, estimates: Sequence[float], now: float) -> list[float] | AccountRetry:
        rate, units = self.limits.requests, self.limits.units
        if now < self._half:
            rate, units = (None if limit is None else limit / 2 for limit in (rate, units))
        slot, solvent = max(self._next, now), max(self._solvent, now)
        times: list[float] = []
        for estimate in estimates:
            at = max(slot, solvent)
            if at > now + AHEAD:
                break
            times.append(at)
            slot = at if rate is None else at + 1 / rate
            solvent = at if units is None else at + estimate / units
        if not times:
            return AccountRetry(max(slot, solvent) - AHEAD + _QUANTUM)
        self._next, self._solvent = slot, solvent
        return times

    def _exceeded(self, until: float, why: str, *, is_open: bool = False) -> AccountRetry | AccountRefusal:
        return AccountRetry(until, why) if self.limits.holds else AccountRefusal(why, is_open)

    def _begin_period(self, wall: int) -> None:
        period = self.period
        period.clock = max(period.clock, wall)
        if period.began < 0 or period.clock >= period.began + self.limits.period:
            period.began, period.spent = period.clock, 0.0
            if self.allowance != float("inf"):
                self.allowance = 0.0

    def _affordable(self, estimates: Sequence[float], most: float) -> int:
        spent, count = self.period.spent, 0
        for estimate in estimates:
            spent += estimate
            if spent > most * (1 + 1e-9):
                break
            count += 1
        return count

    def next_allowance(self, estimate: float) -> float | None:
        """Return the next allowance to write (units), or None while the written allowance covers ``estimate``."""
        ceiling = self.limits.ceiling
        if ceiling is None or self.allowance >= max(ceiling, self.period.spent):
            return None
        part = max(_PART * ceiling, 2 * estimate)
        if self.period.spent + part / 2 <= self.allowance:
            return None
        return max(min(self.period.spent + part, ceiling), self.period.spent)

    def settle(self, report: AccountReport, now: float) -> bool:
        """Account for requests' outcomes. Return whether all booked but unused slots become void."""
        if report.period in (-1, self.period.began):
            self.period.spent = max(0.0, self.period.spent + report.units)
        if self.limits.units is not None:
            self._solvent = max(self._solvent, now) + report.units / self.limits.units
        if self.limits.requests is not None:
            for at in sorted(report.unused, reverse=True):
                # Frees only the last slot, because booked slots do not move.
                if self._next <= at + 1 / self.limits.requests + _NEARLY:
                    self._next = at
        if report.stop is not None:
            self._stopped = max(self._stopped, now + report.stop)
            self._next, self._half = max(self._next, self._stopped), self._stopped + _HALF
        was_open = self.is_open
        if self.limits.breaker is not None:
            self._break(report, now)
        return report.stop is not None or (self.is_open and not was_open)

    def _break(self, report: AccountReport, now: float) -> None:
        assert self.limits.breaker is not None
        failures = self.limits.breaker[0]
        if self._open is not None:
            if report.probe:
                self._open = None
                self._outcomes.clear()
            elif report.probe is False:
                self._open = now + self._pause
            return
        for succeeded in report.outcomes:
            self._outcomes.append(succeeded)
            if self._outcomes.count(False) >= failures:
                self._open = now + self._pause
                return

    @property
    def _pause(self) -> float:
        assert self.limits.breaker is not None
        return self.limits.breaker[2] / 1000
