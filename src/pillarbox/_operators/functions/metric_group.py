"""Metrics of user functions, as in PyFlink: counters, meters, distributions and gauges.

Metrics are reported and reset at the end of each epoch, so totals must be kept in state. Functions of async operators
may use metrics from their threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from operator import index
from typing import Any, NoReturn, TypeVar

from pillarbox._errors import ProgramError, raise_from_user_code, shorten

DEAD_LETTERS, LATE_RECORDS_DROPPED = "dead_letters", "late_records_dropped"

_MetricT = TypeVar("_MetricT", bound="Counter | Meter | Distribution")


class Counter:
    """Counts events in an epoch. Reported in ``TaskReport.counters``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        with self._lock:
            self._count += n

    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""
        self.inc(-n)

    def get_count(self) -> int:
        """Return the count in this epoch so far."""
        return self._count

    def _take(self, counters: dict[str, int], gauges: dict[str, float], name: str, seconds: float) -> None:
        with self._lock:
            count, self._count = self._count, 0
        counters[name] = _json_number(count)


def _json_number(count: Any) -> Any:
    """Convert a number, possibly of a NumPy type, to an int if its type is integral, otherwise to a float."""
    try:
        return index(count)
    except TypeError:
        return float(count)


class Meter:
    """Counts events in an epoch. Reported as the gauge ``<name>.rate``, in events per second."""

    def __init__(self) -> None:
        self._events = Counter()

    def mark_event(self, value: int = 1) -> None:
        """Count ``value`` events."""
        self._events.inc(value)

    def get_count(self) -> int:
        """Return the count in this epoch so far."""
        return self._events.get_count()

    def _take(self, counters: dict[str, int], gauges: dict[str, float], name: str, seconds: float) -> None:
        self._events._take(counters, gauges, name, seconds)
        gauges[f"{name}.rate"] = counters[name] / seconds if seconds > 0 else 0.0


class Distribution:
    """Summarizes an epoch's values.

    The counter ``<name>.count`` reports their number. If it is not 0, the gauges ``<name>.sum``, ``<name>.min``,
    ``<name>.max`` and ``<name>.mean`` are reported, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: tuple[int, float, float, float] = (0, 0, math.inf, -math.inf)

    def update(self, value: int | float) -> None:
        """Add a value."""
        with self._lock:
            count, total, low, high = self._values
            self._values = (count + 1, total + value, min(low, value), max(high, value))

    def _take(self, counters: dict[str, int], gauges: dict[str, float], name: str, seconds: float) -> None:
        with self._lock:
            (count, total, low, high), self._values = self._values, (0, 0, math.inf, -math.inf)
        counters[f"{name}.count"] = count
        if count:
            for part, value in (("sum", total), ("min", low), ("max", high), ("mean", total / count)):
                gauges[f"{name}.{part}"] = float(value)


class _Gauge:
    def __init__(self, function: Callable[[], int | float], operator: str) -> None:
        self._function = function
        self._operator = operator

    def _take(self, counters: dict[str, int], gauges: dict[str, float], name: str, seconds: float) -> None:
        try:
            value = float(self._function())
            if not math.isfinite(value):
                raise ValueError(f"it returned {value}, which is not a finite number")
        except Exception as error:
            what = f"operator {self._operator!r}: the gauge {name!r} failed"
            raise_from_user_code(error, what, operator=self._operator)
        gauges[name] = value


class MetricGroup:
    """Creates metrics by name.

    Methods return the same object for the same name. They raise ``ProgramError`` if a name is not a string, is already
    used for another kind of metric, or is used by the operator itself, such as ``dead_letters``.
    ``pillarbox.metrics(progress)`` reports the metrics, prefixed with the operator's uid.

    Example:
        >>> class Check(FilterFunction[int]):
        ...     def open(self, runtime_context):
        ...         self.dropped = runtime_context.get_metrics_group().counter("dropped")
        ...
        ...     def filter(self, amount):
        ...         if amount < 0:
        ...             self.dropped.inc()
        ...         return amount >= 0
        >>> env.from_collection([5, -7, 9]).filter(Check()).execute_and_collect()
        [5, 9]
    """

    def __init__(self, metrics: UserMetricGroup, prefix: str = "") -> None:
        self._metrics = metrics
        self._prefix = prefix

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return a group whose metrics' names start with ``name`` and a dot.

        Args:
            extra: the name of a group inside that group, which is then returned.
        """
        parts = [_checked(part) for part in (name, extra) if part is not None]
        return MetricGroup(self._metrics, "".join([self._prefix, *(f"{part}." for part in parts)]))

    def counter(self, name: str) -> Counter:
        """Return the counter with this name."""
        return self._metrics.get(self._full(name), Counter)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter with this name.

        Args:
            time_span_in_seconds: ignored; for compatibility with PyFlink. The rate covers the epoch.
        """
        return self._metrics.get(self._full(name), Meter)

    def distribution(self, name: str) -> Distribution:
        """Return the distribution with this name."""
        return self._metrics.get(self._full(name), Distribution)

    def gauge(self, name: str, obj: Callable[[], int | float]) -> None:
        """Report a function's result at the end of each epoch, in ``TaskReport.gauges``.

        Args:
            obj: a function that returns a number. Called in the mailbox thread; if it raises, the task fails.

        Raises:
            ProgramError: another metric has this name, or ``obj`` is not callable.
        """
        if not callable(obj):
            raise ProgramError(f"gauge({name!r}) takes a function that returns a number, not {shorten(obj)}")
        self._metrics.add_gauge(self._full(name), obj)

    def _full(self, name: str) -> str:
        if _checked(name).rpartition(".")[2] in (DEAD_LETTERS, LATE_RECORDS_DROPPED):
            self._metrics.refuse_own(name)
        return self._prefix + name


class UserMetricGroup:
    """A user function's metrics, by name."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._metrics: dict[str, Any] = {}
        self._began = time.monotonic()

    def get(self, name: str, kind: type[_MetricT]) -> _MetricT:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = kind()
        if not isinstance(metric, kind):
            self._refuse(name)
        return metric

    def add_gauge(self, name: str, function: Callable[[], int | float]) -> None:
        if name in self._metrics:
            self._refuse(name)
        self._metrics[name] = _Gauge(function, self._operator)

    def _refuse(self, name: str) -> NoReturn:
        raise ProgramError(
            f"operator {self._operator!r} has two metrics named {name!r}, of different kinds: rename one"
        )

    def refuse_own(self, name: str) -> NoReturn:
        raise ProgramError(
            f"operator {self._operator!r}: its function has a metric named {name!r}, but the operator has one of this"
            f" name itself: rename the function's metric"
        )

    def take(self, uid: str, counters: dict[str, int], gauges: dict[str, float]) -> None:
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        for name, metric in self._metrics.items():
            if f"{uid}.{name}" in counters:  # already has the operator's own counters
                self.refuse_own(name)
            metric._take(counters, gauges, f"{uid}.{name}", seconds)


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ProgramError(f"a metric's name must be a non-empty string, not {shorten(name)}")
    return name
