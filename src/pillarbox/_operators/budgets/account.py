"""The arithmetic of one budget. Each time is an argument: seconds by a clock that never goes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox._operators.budgets.budget import Limits

#: A request may begin in this time (seconds) after its slot, not later. So in any time T, at most
#: rate * (T + LATE) + 1 requests begin, whoever is late.
LATE = 0.04
#: Slots are booked at most this long (seconds) before their time.
AHEAD = 0.1
# A booking that has to wait waits until there are slots for this time (seconds): fewer messages.
_QUANTUM = 0.01
# After a stop, requests begin at half the rate for this time (seconds).
_HALF = 1.0
# A ceiling is charged in parts of this size, each of which is written to a file before it is spent.
_PART = 0.01
# Times are sums of fractions.
_NEARLY = 1e-9
# How long a service that sent 429 without Retry-After is left alone (seconds).
STOP = 1.0


class Slots(NamedTuple):
    """Slots of a booking.

    Attributes:
        times: when each request may begin, at the earliest.
        probes: whether it is the one request that an open breaker lets through.
    """

    times: list[float]
    probes: bool = False


class Later(NamedTuple):
    """No slot can be booked yet.

    Attributes:
        at: when to try again.
        why: for people, if the breaker is open or the ceiling is reached.
    """

    at: float
    why: str = ""


class Refused(NamedTuple):
    """No request may begin, and the budget does not hold requests.

    Attributes:
        why: for people.
        is_open: whether the breaker is open; else the ceiling is reached.
    """

    why: str
    is_open: bool


class Report(NamedTuple):
    """The outcome of requests.

    Attributes:
        units: what they cost beyond their estimates.
        outcomes: of each request that has ended, in order, whether it succeeded.
        probe: whether a breaker's probe succeeded, or None.
        stop: seconds that the service wants to be left alone, or None.
        unused: slots that were not used, by their times.
    """

    units: float = 0.0
    outcomes: tuple[bool, ...] = ()
    probe: bool | None = None
    stop: float | None = None
    unused: tuple[float, ...] = ()


@dataclass
class Period:
    """What a ceiling has been charged with.

    Attributes:
        began: when the first request of the period began (epoch ms); -1 before the first one.
        spent: units of the period; requests under way count with their estimates.
        clock: the latest time that was ever seen (epoch ms): time never goes back.
    """

    began: int = -1
    spent: float = 0.0
    clock: int = 0

    def merge(self, other: Period, length: int) -> None:
        """Take over what another checkpoint says: the more that was spent, in the later period."""
        self.clock = max(self.clock, other.clock)
        began = max(self.began, other.began)
        live = [each.spent for each in (self, other) if each.began + length > began]
        self.began, self.spent = began, max(live, default=0.0)


class Account:
    """One budget's slots, debt, ceiling and breaker. One thread at a time.

    Args:
        now: the time of the first slot.
        written: whether a ceiling is spent only as far as :attr:`allowance` says; else there is no file to write.
    """

    def __init__(self, limits: Limits, now: float, *, written: bool = False) -> None:
        self.limits = limits
        self.period = Period()
        #: Units of the period that may be spent: the file says that they are.
        self.allowance: float = 0.0 if written else float("inf")
        self._next = now
        # When the units are out of debt.
        self._solvent = now
        self._stopped = now
        self._half = now
        of = limits.breaker[1] if limits.breaker else 1
        self._outcomes: deque[bool] = deque(maxlen=of)
        # When an open breaker lets a request through; None: it is closed.
        self._open: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open."""
        return self._open is not None

    def book(self, estimates: Sequence[float], now: float, wall: int) -> Slots | Later | Refused:
        """Book slots for requests, in order: for all of them, or for the first ones.

        Args:
            estimates: the units of each request, of at least one.
            wall: the wall clock (epoch ms).
        """
        if now < self._stopped:
            return Later(self._stopped)
        if self._open is not None and now < self._open:
            pause = f"{self._open - now:.1f} s"
            return self._exceeded(self._open, f"its circuit breaker is open, for {pause} more", is_open=True)
        count = len(estimates) if self._open is None else 1
        if self.limits.ceiling is not None:
            self._begin_period(wall)
            count = min(count, self._affordable(estimates, self.limits.ceiling))
            if not count:
                end = self.period.began + self.limits.period - self.period.clock
                why = f"the ceiling of {self.limits.ceiling:g} units is reached, for {end / 1000:.0f} s more"
                return self._exceeded(now + end / 1000, why)
            count = min(count, self._affordable(estimates, self.allowance))
            if not count:
                return Later(now + _QUANTUM)  # the file is being written
        times = self._times(estimates[:count], now)
        if isinstance(times, Later):
            return times
        self.period.spent += sum(estimates[: len(times)])
        if self._open is None:
            return Slots(times)
        # A probe whose process dies is followed by another one.
        self._open = now + self._pause
        return Slots(times, probes=True)

    def _times(self, estimates: Sequence[float], now: float) -> list[float] | Later:
        rate, units = self.limits.requests, self.limits.units
        if now < self._half:
            rate, units = (None if each is None else each / 2 for each in (rate, units))
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
            return Later(max(slot, solvent) - AHEAD + _QUANTUM)
        self._next, self._solvent = slot, solvent
        return times

    def _exceeded(self, until: float, why: str, *, is_open: bool = False) -> Later | Refused:
        return Later(until, why) if self.limits.holds else Refused(why, is_open)

    # -- ceiling --

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
        """Return the units of the period that a file has to say next, or None while the last ones suffice."""
        ceiling = self.limits.ceiling
        if ceiling is None or self.allowance >= max(ceiling, self.period.spent):
            return None
        part = max(_PART * ceiling, 2 * estimate)
        if self.period.spent + part / 2 <= self.allowance:
            return None
        return max(min(self.period.spent + part, ceiling), self.period.spent)

    # -- outcomes --

    def settle(self, report: Report, now: float) -> bool:
        """Take note of outcomes; return whether slots that are booked and not used are void."""
        self.period.spent = max(0.0, self.period.spent + report.units)
        if self.limits.units is not None:
            self._solvent = max(self._solvent, now) + report.units / self.limits.units
        if self.limits.requests is not None:
            for at in sorted(report.unused, reverse=True):
                # Only the last slot: those that were booked after it keep their distance.
                if self._next <= at + 1 / self.limits.requests + _NEARLY:
                    self._next = at
        if report.stop is not None:
            self._stopped = max(self._stopped, now + report.stop)
            self._next, self._half = max(self._next, self._stopped), self._stopped + _HALF
        was_open = self.is_open
        if self.limits.breaker is not None:
            self._break(report, now)
        return report.stop is not None or (self.is_open and not was_open)

    def _break(self, report: Report, now: float) -> None:
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
