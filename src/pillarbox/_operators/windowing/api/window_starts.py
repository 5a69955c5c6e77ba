"""Computes the starts of fixed-length windows, which are multiples of a length, or midnights in a time zone."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from pillarbox._errors import ProgramError, shorten
from pillarbox._time.duration import DurationLike, to_millis

_DAY = 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_EPOCH_DAY = _EPOCH.toordinal()


class MillisecondWindowStarts:
    """Computes window starts at multiples of a length (from 1970 in UTC) plus an offset."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def start(self, time: int, step: int) -> int:
        """Return the last window start at or before ``time``. Windows start every ``step`` ms."""
        return time - (time - self.offset) % step

    def starts(self, times: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
        return times - (times - self.offset) % step

    def plus(self, start: int, length: int, step: int) -> int:
        return start + length

    def windows(self, time: int, size: int, slide: int) -> Iterator[tuple[int, int]]:
        start = self.start(time, slide)
        while start + size > time:
            yield start, start + size
            start -= slide


class DayWindowStarts:
    """Computes window starts at local midnight plus an offset."""

    def __init__(self, zone: str, offset: int, asked_by: str) -> None:
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise ProgramError(
                f"{asked_by}: time_zone= must be a time zone name, such as 'Europe/Berlin', not {shorten(zone)}"
            ) from None
        self.zone = zone
        self.offset = offset
        self._first = functools.lru_cache(maxsize=1024)(self._midnight)

    def __reduce__(self) -> Any:
        return DayWindowStarts, (self.zone, self.offset, "")

    def _midnight(self, day: int) -> int:
        wall = datetime.datetime.fromordinal(day) + datetime.timedelta(milliseconds=self.offset)
        return (wall.replace(tzinfo=self._zone) - _EPOCH) // datetime.timedelta(milliseconds=1)

    def _day(self, time: int, step: int) -> int:
        try:
            wall = datetime.datetime.fromtimestamp(time // 1000, self._zone).replace(tzinfo=None)
            day = (wall - datetime.timedelta(milliseconds=self.offset)).toordinal()
            # If clocks change at midnight, the wall clock may show a neighboring day.
            if time < self._first(day):
                day -= 1
            elif time >= self._first(day + 1):
                day += 1
        except (ValueError, OverflowError, OSError):
            raise ProgramError(
                f"{time} (epoch ms) is outside the years 1 to 9999, so it is no date in the time zone {self.zone}:"
                " timestamps must be in milliseconds"
            ) from None
        return day - (day - _EPOCH_DAY) % (step // _DAY)

    def start(self, time: int, step: int) -> int:
        return self._first(self._day(time, step))

    def starts(self, times: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
        # The times are in few UTC days. In each, one or two local days begin.
        edges: set[int] = set()
        for day in np.unique(times // _DAY).tolist():
            edge = self.start(max(day * _DAY, int(times.min())), step)
            end = min((day + 1) * _DAY - 1, int(times.max()))
            edges.add(edge)
            while (edge := self.plus(edge, step, step)) <= end:
                edges.add(edge)
        ordered = np.array(sorted(edges), np.int64)
        starts: npt.NDArray[np.int64] = ordered[np.searchsorted(ordered, times, "right") - 1]
        return starts

    def plus(self, start: int, length: int, step: int) -> int:
        # If a time zone omits a day, two days begin at the same time, so days must be counted.
        return self._first(self._day(start, step) + length // _DAY)

    def windows(self, time: int, size: int, slide: int) -> Iterator[tuple[int, int]]:
        day = self._day(time, slide)
        while (end := self._first(day + size // _DAY)) > time:
            yield self._first(day), end
            day -= slide // _DAY


def line(
    asked_by: str, offset: int, time_zone: str | None, lengths: dict[str, int]
) -> MillisecondWindowStarts | DayWindowStarts:
    """Return the object that computes window starts.

    Args:
        asked_by: the method that the user called, for error messages.
        time_zone: the time zone of midnight. None if windows start at multiples of their length.
        lengths: maps parameter names to milliseconds. With a time zone, they must be whole days.
    """
    if time_zone is None:
        return MillisecondWindowStarts(offset)
    for name, length in lengths.items():
        if length % _DAY:
            raise ProgramError(
                f"{asked_by}: with time_zone=, the {name} must be a number of whole days, not {length} ms. Windows"
                " shorter than a day need no time zone, only an offset"
            )
    return DayWindowStarts(time_zone, offset, asked_by)


def offset_millis(asked_by: str, offset: DurationLike, step: int) -> int:
    millis = to_millis(offset, f"{asked_by}: the offset", allow_negative=True)
    if abs(millis) >= step:
        raise ProgramError(f"{asked_by}: the offset must be smaller than {step} ms, not {shorten(offset)}")
    return millis
