from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pillarbox import (
    AggregateFunction,
    CumulativeEventTimeWindows,
    ProcessWindowFunction,
    Row,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    count_,
    sum_,
)

# The first of some days with a change.
ZONES = {
    "Pacific/Apia": "2011-12-25",  # had no 30 December
    "Pacific/Kwajalein": "1993-08-16",  # had no 21 August
    "America/Juneau": "1867-10-14",  # had 18 October twice
    "Europe/Berlin": "2024-03-27",
    "America/Sao_Paulo": "2018-10-30",  # midnight was left out
    "America/Havana": "2024-10-30",  # midnight occurs twice
    "Australia/Lord_Howe": "2024-04-03",  # by half an hour
    "Etc/UTC": "1969-12-28",
}
DAYS = 10
HOUR = 3_600_000

# Kind, size and slide (or step) in days.
KINDS = [("tumbling", 1, 1), ("tumbling", 2, 2), ("tumbling", 3, 3)]
KINDS += [("sliding", size, slide) for size, slide in ((1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (1, 2), (2, 3), (1, 3))]
KINDS += [("cumulating", 1, 1), ("cumulating", 4, 1), ("cumulating", 4, 2)]


def assigner_of(kind: str, size: int, step: int, hour: int, zone: str) -> Any:
    offset = f"{hour} hours"
    if kind == "tumbling":
        return TumblingEventTimeWindows.of(f"{size} days", offset, time_zone=zone)
    make = SlidingEventTimeWindows if kind == "sliding" else CumulativeEventTimeWindows
    return make.of(f"{size} days", f"{step} days", offset, time_zone=zone)


def millis(day: int, hour: int, zone: str) -> int:
    wall = dt.datetime(1970, 1, 1, hour) + dt.timedelta(days=day)
    return int(wall.replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def half_hours(zone: str, every: int = 1) -> list[int]:
    first = millis((dt.date.fromisoformat(ZONES[zone]) - dt.date(1970, 1, 1)).days, 0, zone)
    return [first + number * HOUR // 2 for number in range(0, DAYS * 48, every)]


def windows_by_calendar(kind: str, size: int, step: int, hour: int, zone: str) -> set[tuple[int, int]]:
    def spans() -> Iterator[tuple[int, int]]:
        first = (dt.date.fromisoformat(ZONES[zone]) - dt.date(1970, 1, 1)).days
        apart = size if kind == "cumulating" else step
        for day in range(first - 12, first + DAYS + 12):
            if day % apart == 0:
                for length in range(step, size + 1, step) if kind == "cumulating" else [size]:
                    yield millis(day, hour, zone), millis(day + length, hour, zone)

    return {(start, end) for start, end in spans() if start < end}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("hour", [0, 3])
def test_assigners_count_days_as_the_calendar_does(zone, hour):
    for kind, size, step in KINDS:
        assigner = assigner_of(kind, size, step, hour, zone)
        every = windows_by_calendar(kind, size, step, hour, zone)
        for time in half_hours(zone):
            windows = [tuple(window) for window in assigner.assign_windows(None, time, None)]
            expected = {(start, end) for start, end in every if start <= time < end}
            assert len(windows) == len(set(windows)) and set(windows) == expected, (kind, size, step, time)


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator


class Bounds(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield (window.start, window.end), *elements


ROW = Types.ROW_NAMED(["key", "at"], [Types.STRING(), Types.LONG()])
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def since_epoch(at: dt.datetime) -> int:
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(milliseconds=1)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("kind", "size", "step"), KINDS)
def test_columns_and_functions_give_the_windows_of_the_calendar(zone, kind, size, step):
    times = half_hours(zone, every=9)
    every = windows_by_calendar(kind, size, step, 0, zone)
    expected = {(start, end): sum(start <= time < end for time in times) for start, end in every}
    expected = {bounds: count for bounds, count in expected.items() if count}

    def windows() -> Any:
        rows = StreamExecutionEnvironment().from_collection([("k", time) for time in times], ROW)
        keyed = rows.assign_timestamps_and_watermarks(BY_AT).key_by("key")
        return keyed.window(assigner_of(kind, size, step, 0, zone))

    columns = windows().aggregate(n=count_()).execute_and_collect()
    assert len(columns) == len(expected)
    assert {(since_epoch(row.window_start), since_epoch(row.window_end)): row.n for row in columns} == expected
    functions = windows().aggregate(Count(), Bounds()).execute_and_collect()
    assert len(functions) == len(expected) and dict(functions) == expected


@pytest.mark.parametrize("zone", ["Pacific/Apia", "Europe/Berlin"])
def test_days_go_on_from_a_savepoint_and_fire_again(zone):
    times = half_hours(zone, every=9)
    bounds = windows_by_calendar("sliding", 3, 1, 0, zone)

    def job(savepoint: Any = None) -> Any:
        env = StreamExecutionEnvironment()
        keyed = env.from_collection([], ROW).assign_timestamps_and_watermarks(BY_AT).key_by("key")
        windows = keyed.window(assigner_of("sliding", 3, 1, 0, zone)).allowed_lateness("30 days")
        return env.local_job(out=windows.aggregate(n=count_(), last=sum_("at")).uid("days"), savepoint=savepoint)

    results: dict[tuple[int, int], int] = {}
    savepoint, position = None, 0
    while position < len(times) + 1:
        with job(savepoint) as running:
            (source,) = running.program.sources
            for _ in range(2):
                some = times[position : position + 5] or ([times[0]] if position >= len(times) else [])
                run = [Row(key="k", at=time) for time in some]
                out = running.run_epoch({source: [[run]]}, bounded=position >= len(times))["out"]
                position += len(some)
                results |= {(since_epoch(row.window_start), since_epoch(row.window_end)): row.n for row in out}
                if position > len(times):
                    break
            savepoint = running.savepoint()
    times.append(times[0])  # the late one
    expected = {(start, end): sum(start <= time < end for time in times) for start, end in bounds}
    assert results == {window: count for window, count in expected.items() if count}
