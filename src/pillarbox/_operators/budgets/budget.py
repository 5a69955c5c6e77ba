"""Budgets: limits on the rate and cost of requests."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pillarbox._errors import ProgramError, check_count, check_text, describe, shorten
from pillarbox._time.duration import DurationLike, positive_millis

_PER = re.compile(r"\s*([0-9][0-9_.,eE+-]*)\s*(?:per|/)\s*(.+)")
_AMOUNT = re.compile(r"\s*([0-9][0-9_.,]*)\s*([^\s0-9]*)\s*")


@dataclass(frozen=True)
class CircuitBreaker:
    """Stops the requests of a :class:`Budget` when most of them fail.

    The breaker opens when ``failures`` of the last ``of`` requests have failed. Answers that request a pause (429,
    ``Retry-After``) do not count. After ``pause`` (an int is milliseconds), one request may begin. If it succeeds, the
    breaker closes; otherwise, the breaker stays open for another ``pause``.

    Raises:
        ProgramError: an attribute is invalid.
    """

    failures: int = 5
    of: int = 10
    pause: DurationLike = "30 seconds"

    def __post_init__(self) -> None:
        check_count(self.failures, "CircuitBreaker: failures=")
        check_count(self.of, "CircuitBreaker: of=")
        if self.failures > self.of:
            raise ProgramError(
                f"CircuitBreaker: failures={self.failures} exceeds of={self.of}, so the breaker would never open:"
                " lower failures="
            )
        positive_millis(self.pause, "CircuitBreaker: pause=")


class BudgetLimits(NamedTuple):
    """A budget as plain values, for messages between processes.

    Attributes:
        name: the budget's name, or "" for an operator's ``job_rate_limit``.
        requests: per second, or None.
        units: per second, or None.
        ceiling: units per ``period`` (ms), or None.
        holds: whether requests wait, rather than fail, at the ceiling or while the breaker is open.
        breaker: (failures, of, pause in ms), or None.
    """

    name: str = ""
    requests: float | None = None
    units: float | None = None
    ceiling: float | None = None
    period: int = 0
    holds: bool = True
    breaker: tuple[int, int, int] | None = None

    def of_operator(self, uid: str) -> BudgetLimits:
        return self if self.name else self._replace(name=f"\0{uid}")

    def shared_by(self, tasks: int) -> BudgetLimits:
        """Return one task's limits if ``tasks`` concurrent tasks divide these limits equally."""
        requests, units = (None if rate is None else rate / tasks for rate in (self.requests, self.units))
        return self._replace(requests=requests, units=units)


@dataclass(frozen=True)
class Budget:
    """Limits the rate and cost of requests. All operators and queries of a driver share a budget by its name.

    Args:
        name: identifies the budget. Budgets with the same name must have the same values.
        requests: the maximum rate, such as ``"100 per second"`` or ``"5000 per hour"``. A number is per second.
        units: the maximum cost per time, such as ``"90000 per minute"``. You choose the unit, such as tokens or cents.
        unit_cost: a function that returns a request's cost, given its result (for a batch, the list of results). By
            default, a request costs its estimate.
        estimate: the units that a request reserves before it begins: a number, or a function of the record (for a
            batch, of the list of records). A failed request costs its estimate, unless its error has the status 429 or
            ``Retry-After``.
        ceiling: the maximum units in a period, such as ``(5_000_000, "1 day")`` or ``("5 USD", "1 day")``. A period
            begins with the first request after the previous period.
        when_exceeded: at the ceiling and while the breaker is open, ``"hold"`` makes requests wait. ``"fail"`` makes
            them raise :class:`BudgetExceededError` or :class:`CircuitOpenError`, which ``on_failure`` handles.
        breaker: stops requests when most of them fail.

    Raises:
        ProgramError: an argument is invalid.

    Example:
        >>> model = Budget("model", requests="100 per second", units="90000 per minute", estimate=50)
        >>> async def length(word):
        ...     return len(word)
        >>> env.from_collection(["be", "not"]).map_async(length, budgets=[model]).execute_and_collect()
        [2, 3]
    """

    name: str
    requests: str | float | None = None
    units: str | float | None = None
    unit_cost: Callable[[Any], float] | None = field(default=None, compare=False)
    estimate: float | Callable[[Any], float] = field(default=1, compare=False)
    ceiling: tuple[str | float, DurationLike] | None = None
    when_exceeded: Literal["hold", "fail"] = "hold"
    breaker: CircuitBreaker | None = None

    def __post_init__(self) -> None:
        check_text(self.name, "Budget: name=")
        if self.requests is None and self.units is None and self.ceiling is None and self.breaker is None:
            self._refuse("limits nothing: set requests=, units=, ceiling= or breaker=")
        if self.unit_cost is not None and not callable(self.unit_cost):
            self._refuse(f"unit_cost= must be a function of the result, not {shorten(self.unit_cost)}")
        if not callable(self.estimate) and not _is_amount(self.estimate):
            self._refuse(
                f"estimate= must be a number of units, or a function of the record, not {shorten(self.estimate)}"
            )
        if self.when_exceeded not in ("hold", "fail"):
            self._refuse(f'when_exceeded= must be "hold" or "fail", not {shorten(self.when_exceeded)}')
        if self.breaker is not None and not isinstance(self.breaker, CircuitBreaker):
            self._refuse(f"breaker= must be a CircuitBreaker, not {shorten(self.breaker)}")
        limits = self.limits
        if not callable(self.estimate) and limits.ceiling is not None and self.estimate > limits.ceiling:
            self._refuse(f"an estimate of {self.estimate:g} units is above the ceiling, so no request could ever start")

    @property
    def limits(self) -> BudgetLimits:
        ceiling, period = None, 0
        if self.ceiling is not None:
            ceiling, period = self._ceiling(self.ceiling)
        breaker = self.breaker
        return BudgetLimits(
            self.name,
            self._per_second("requests", self.requests),
            self._per_second("units", self.units),
            ceiling,
            period,
            self.when_exceeded == "hold",
            None if breaker is None else (breaker.failures, breaker.of, positive_millis(breaker.pause, "")),
        )

    def estimate_of(self, argument: Any) -> float:
        """Return a request's estimated cost in units. Raises ``ProgramError`` if ``estimate`` returns no number."""
        return self._amount("estimate", self.estimate, argument) if callable(self.estimate) else self.estimate

    def cost_of(self, result: Any, estimate: float) -> float:
        """Return a request's cost in units. Raises ``ProgramError`` if ``unit_cost`` returns no number."""
        return estimate if self.unit_cost is None else self._amount("unit_cost", self.unit_cost, result)

    def _amount(self, option: str, function: Callable[[Any], float], argument: Any) -> float:
        try:
            amount: Any = function(argument)
        except Exception as error:
            raise ProgramError(
                f"Budget {self.name!r}: the function {option}= raised an error for {shorten(argument)}:"
                f" {describe(error)}"
            ) from error
        if not _is_amount(amount):
            self._refuse(f"{option}= returned {shorten(amount)} for {shorten(argument)}: return a number of units")
        return float(amount)

    def _per_second(self, option: str, rate: Any) -> float | None:
        if rate is None:
            return None
        match = _PER.fullmatch(rate) if isinstance(rate, str) else None
        number: Any = _number(match[1]) if match else rate
        if not _is_amount(number) or not number:
            self._refuse(
                f"{option}= must be a number per second, or a string such as '100 per second', '90000 per minute' or"
                f" '10 per 5 seconds', not {shorten(rate)}"
            )
        if match is None:
            return float(number)
        unit = match[2].strip()
        return float(number) * 1000 / positive_millis(unit if unit[0].isdigit() else f"1 {unit}", f"Budget: {option}=")

    def _ceiling(self, ceiling: Any) -> tuple[float, int]:
        amount = ceiling[0] if isinstance(ceiling, tuple) and len(ceiling) == 2 else None
        match = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
        number: Any = _number(match[1]) if match else amount
        if not _is_amount(number) or not number:
            self._refuse(
                "ceiling= must be a tuple of units and period, such as (5_000_000, '1 day') or ('5 USD', '1 day'), not"
                f" {shorten(ceiling)}"
            )
        return float(number), positive_millis(ceiling[1], "Budget: the period of ceiling=")

    def _refuse(self, why: str) -> None:
        raise ProgramError(f"Budget {self.name!r}: {why}")


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and value >= 0 and not math.isinf(value)
