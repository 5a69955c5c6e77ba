"""Event-time timestamps: their limits, assigners, and conversion from other types.

A timestamp is a 64-bit ``int``: milliseconds since 1970-01-01T00:00Z (Unix time). Follows Flink's ``TimestampAssigner``
and ``Watermark``. Thread-safe.
"""

from __future__ import annotations

import datetime
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pillarbox._errors import ProgramError, no_time_zone, shorten

MIN_TIMESTAMP = -(2**63)
"""Means "no watermark yet" or "no timestamp" (Flink's ``Long.MIN_VALUE``)."""

MAX_WATERMARK = 2**63 - 1
"""The last watermark of a bounded input, which fires all event-time timers."""

EXPECTED = "milliseconds since the epoch are expected, as int (or a datetime or date)"
"""The types of a timestamp, for error messages."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class TimestampAssigner(ABC):
    """Assigns event time to records (PyFlink's class)."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the timestamp of a record.

        Args:
            record_timestamp: the record's current timestamp (Unix time in ms), or ``MIN_TIMESTAMP`` if unset.

        Returns:
            Unix time in ms, a ``datetime`` (rounded down to milliseconds), or a ``date`` (midnight). Without a time
            zone, the session's time zone applies.
        """


def to_timestamp(
    value: object, zone: datetime.tzinfo | None = None, source: object = None, record: object = None
) -> int:
    """Convert a point in time to a timestamp (Unix time in ms).

    Args:
        value: an int (or numpy integer), a ``datetime``, or a ``date`` (midnight).
        zone: the time zone of dates and naive datetimes, as in Spark's casts of DATE and TIMESTAMP_NTZ to TIMESTAMP, or
            None to refuse them.

    Raises:
        TypeError: the value has another type, such as None, a bool, a float, a string or NaT.
        ValueError: the value exceeds 64 bits, or has no time zone and ``zone`` is None.
    """
    # Ordered by frequency, because this runs for each record.
    if type(value) is int:
        number = value
    elif isinstance(value, datetime.date):
        # pandas' NaT is an instance of datetime, but not equal to itself.
        if value != value:
            raise _not_a_timestamp(value, source, record)
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        if value.tzinfo is None:
            if zone is None:
                raise ValueError(no_time_zone(f"{shorten(value)}{_origin(source, record)}"))
            value = value.replace(tzinfo=zone)
        since = value - _EPOCH
        # Exact, and rounds down.
        number = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    elif isinstance(value, (bool, np.bool_)):
        raise _not_a_timestamp(value, source, record)
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise _not_a_timestamp(value, source, record) from None
    if MIN_TIMESTAMP <= number <= MAX_WATERMARK:
        return number
    raise ValueError(
        f"the timestamp {number}{_origin(source, record)} does not fit in 64 bits: "
        "milliseconds since the epoch are expected"
    )


def _not_a_timestamp(value: object, source: object, record: object) -> TypeError:
    return TypeError(f"not a timestamp: {shorten(value)} ({type(value).__name__}){_origin(source, record)}; {EXPECTED}")


def _origin(source: object, record: object) -> str:
    return "" if source is None else f" from {shorten(source)} for the record {shorten(record)}"


class _FunctionTimestampAssigner(TimestampAssigner):
    """Calls ``function(value, record_timestamp)``."""

    def __init__(self, function: Callable[[Any, int], Any], assigner: object) -> None:
        self.function = function
        self._assigner = assigner

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self.function(value, record_timestamp)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return shorten(self._assigner)


class _ValueFunctionTimestampAssigner(TimestampAssigner):
    """Calls ``function(value)``."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self.function(value)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return shorten(self.function)


class ColumnTimestampAssigner(TimestampAssigner):
    """Reads the timestamp from a column of the record.

    Records are mappings, rows, or objects with this attribute. The column contains Unix times in ms, datetimes or
    dates.
    """

    def __init__(self, column: str) -> None:
        if not column:
            raise ProgramError("with_timestamp_assigner(): the timestamp column name is empty")
        self.column = column

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        column = self.column
        try:
            # By position, since a column `count` would otherwise be the tuple's method.
            if isinstance(value, Mapping):
                timestamp = value[column]
            elif isinstance(value, tuple):
                timestamp = value[_fields_of(value).index(column)]
            else:
                timestamp = getattr(value, column)
        except (KeyError, AttributeError, ValueError, IndexError):
            raise ValueError(f"no timestamp column {column!r} in the record {shorten(value)}") from None
        return timestamp  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"column {self.column!r}"


def _fields_of(row: Any) -> Any:
    # Fields of a Spark Row, or of a named tuple.
    return getattr(row, "__fields__", None) or row._fields


def as_timestamp_assigner(assigner: object) -> TimestampAssigner:
    """Convert a user's timestamp assigner to a :class:`TimestampAssigner`.

    A user's assigner is an object with ``extract_timestamp(value, record_timestamp)``, a function, or a column name. A
    function receives the record's timestamp, too, if it has a second required parameter, or a parameter
    ``record_timestamp``. Callers must convert results with ``to_timestamp``.
    """
    if isinstance(assigner, str):
        return ColumnTimestampAssigner(assigner)
    if isinstance(assigner, type) and hasattr(assigner, "extract_timestamp"):
        name = assigner.__name__
        raise ProgramError(f"a timestamp assigner must be an instance, not a class: pass {name}(), not {name}")
    if isinstance(assigner, (_FunctionTimestampAssigner, _ValueFunctionTimestampAssigner, ColumnTimestampAssigner)):
        return assigner
    extract = getattr(assigner, "extract_timestamp", None)
    if callable(extract):
        return _FunctionTimestampAssigner(extract, assigner)
    if not callable(assigner):
        raise ProgramError(
            f"{shorten(assigner)} is not a timestamp assigner: pass a TimestampAssigner, a function "
            "f(value) or f(value, record_timestamp), or a column name"
        )
    if _takes_record_timestamp(assigner):
        return _FunctionTimestampAssigner(assigner, assigner)
    return _ValueFunctionTimestampAssigner(assigner)


def _takes_record_timestamp(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is p.empty for p in positional)
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required > 2 or keywords or not (positional or takes_any):
        raise ProgramError(f"the timestamp function {shorten(function)} must take (value) or (value, record_timestamp)")
    return required == 2 or (len(positional) >= 2 and positional[1].name == "record_timestamp")
