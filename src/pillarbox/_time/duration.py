"""Durations in whole milliseconds, and their conversion from other types.

Strings may use units as in Spark (``"1 hour 30 minutes"``) or Flink (``"200ms"``, ``"10 min"``).
"""

from __future__ import annotations

import datetime
import operator
import re
from fractions import Fraction
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox._unpickle import make

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

_UNITS: dict[str, Fraction] = {
    name: Fraction(length)
    for length, names in (
        (7 * _DAY, "w week weeks"),
        (_DAY, "d day days"),
        (_HOUR, "h hr hrs hour hours"),
        (_MINUTE, "m min mins minute minutes"),
        (_SECOND, "s sec secs second seconds"),
        (1, "ms msec msecs milli millis millisecond milliseconds"),
        (Fraction(1, 1000), "us micro micros microsecond microseconds"),
    )
    for name in names.split()
}

# \d would also match other scripts' digits
_PART = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)(?![a-z])", re.IGNORECASE)


class _Millis:
    """A whole number of milliseconds."""

    __slots__ = ("_millis",)

    def __init__(self, millis: int) -> None:
        if isinstance(millis, bool):
            raise ProgramError(f"a duration takes a whole number, not {millis!r}")
        try:
            self._millis = operator.index(millis)
        except TypeError:
            raise ProgramError(f"a duration takes a whole number, not {shorten(millis)}") from None

    def __eq__(self, other: object) -> bool:
        return self._millis == other._millis if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._millis))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._millis} ms)"


def _times(count: int, unit: int) -> int:
    # Raises for other types, whose product would be nonsense.
    return _Millis(count)._millis * unit


class Duration(_Millis):
    """An amount of time, in whole milliseconds (PyFlink's ``pyflink.common.Duration``).

    Immutable. The ``of_*`` methods raise ``ProgramError`` for anything but a whole number.

    Example:
        >>> Duration.of_seconds(5)
        Duration(5000 ms)
    """

    __slots__ = ()

    @staticmethod
    def of_days(days: int) -> Duration:
        """Return a duration of ``days`` 24-hour days."""
        return Duration(_times(days, _DAY))

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """Return a duration of ``hours`` hours."""
        return Duration(_times(hours, _HOUR))

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """Return a duration of ``minutes`` minutes."""
        return Duration(_times(minutes, _MINUTE))

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """Return a duration of ``seconds`` seconds."""
        return Duration(_times(seconds, _SECOND))

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """Return a duration of ``millis`` milliseconds."""
        return Duration(millis)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Return a duration of ``nanos`` nanoseconds, rounded down to milliseconds."""
        return Duration(_times(nanos, 1) // 1_000_000)

    def to_millis(self) -> int:
        """Return the duration in milliseconds."""
        return self._millis

    def __reduce__(self) -> Any:
        return make, ("Duration", self._millis)


class Time(_Millis):
    """An amount of time for window sizes and offsets (PyFlink's ``pyflink.common.Time``).

    An offset may be negative: ``Time.hours(-8)``. The static methods raise ``ProgramError`` for anything but a whole
    number.

    Example:
        >>> Time.minutes(10)
        Time(600000 ms)
    """

    __slots__ = ()

    @staticmethod
    def days(days: int) -> Time:
        """Return a duration of ``days`` 24-hour days."""
        return Time(_times(days, _DAY))

    @staticmethod
    def hours(hours: int) -> Time:
        """Return a duration of ``hours`` hours."""
        return Time(_times(hours, _HOUR))

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Return a duration of ``minutes`` minutes."""
        return Time(_times(minutes, _MINUTE))

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Return a duration of ``seconds`` seconds."""
        return Time(_times(seconds, _SECOND))

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Return a duration of ``milliseconds`` milliseconds."""
        return Time(milliseconds)

    def to_milliseconds(self) -> int:
        """Return the duration in milliseconds."""
        return self._millis

    def __reduce__(self) -> Any:
        return make, ("Time", self._millis)


DurationLike = datetime.timedelta | int | str | Duration | Time
"""All types that are accepted as a duration."""


def to_millis(value: DurationLike, what: str = "", *, allow_negative: bool = False) -> int:
    """Convert a duration to whole milliseconds, rounded down as in Java's ``Duration.toMillis``.

    Accepts a ``timedelta``, an int (milliseconds), a :class:`Duration` or :class:`Time` (also PyFlink's), or a string
    with units from weeks to microseconds. ``what`` names the duration in error messages.
    """
    millis = _millis_of(value)
    where = what if not what or what.endswith("=") else f"{what}: "
    if millis is None:
        raise ProgramError(f"{where}{shorten(value)} is not a duration: pass {_ACCEPTED}")
    if millis < 0 and not allow_negative:
        raise ProgramError(f"{where}{shorten(value)} is negative, which a duration cannot be")
    if abs(millis) > MAX_WATERMARK:
        raise ProgramError(f"{where}{shorten(value)} does not fit in 64 bits of milliseconds")
    return millis


def positive_millis(value: DurationLike, what: str) -> int:
    millis = to_millis(value, what)
    if millis <= 0:
        raise ProgramError(f"{what} must be at least one millisecond, not {shorten(value)}")
    return millis


_ACCEPTED = (
    "a timedelta, an int (milliseconds), a Duration, or a string such as '5 seconds', '10 min', "
    "'1 hour 30 minutes' or '200ms'"
)


def _millis_of(value: object) -> int | None:
    if isinstance(value, _Millis):
        return value._millis
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, datetime.timedelta):
        exact = Fraction((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds, 1000)
        return _cut(exact)
    for method in ("to_millis", "to_milliseconds"):  # such as PyFlink's classes
        convert = getattr(value, method, None)
        if callable(convert) and not isinstance(value, type):
            return int(convert())
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _parse(text: str) -> int | None:
    body = text.strip()
    if body[:9].lower() == "interval ":  # as in Spark's SQL
        body = body[9:]
    if not body:
        return None
    total = Fraction(0)
    position = 0
    while position < len(body):
        match = _PART.match(body, position)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            return None
        total += Fraction(match[1]) * unit
        position = match.end()
    return _cut(total)


def _cut(exact: Fraction) -> int:
    return exact.numerator // exact.denominator
