from __future__ import annotations

import datetime
import pickle
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    ProgramError,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

HOUR = 3_600_000
NOT_A_FUNCTION: Any = 5
times = st.integers(-(10**13), 10**13)
sizes = st.integers(1, 10**8)


class Context:
    def get_current_processing_time(self):
        return 90_000


def windows(assigner, time):
    return assigner.assign_windows("element", time, Context())


@given(times, sizes, st.data())
def test_a_tumbling_window_holds_its_element_and_is_one_of_a_row(time, size, data):
    offset = data.draw(st.integers(-size + 1, size - 1))
    ((start, end),) = windows(TumblingEventTimeWindows.of(size, offset), time)
    assert start <= time < end == start + size
    assert (start - offset) % size == 0


@given(times, st.integers(1, 1000), st.integers(1, 1000), st.data())
def test_an_element_is_in_all_sliding_windows_that_hold_it(time, size, slide, data):
    offset = data.draw(st.integers(-slide + 1, slide - 1))
    results = windows(SlidingEventTimeWindows.of(size, slide, offset), time)
    around = range((time - offset - size) // slide - 1, (time - offset) // slide + 2)
    starts = [offset + number * slide for number in around]
    assert sorted(results) == [(start, start + size) for start in starts if start <= time < start + size]


@given(times, st.integers(1, 100), st.integers(1, 50))
def test_cumulating_windows_start_together_and_end_step_by_step(time, step, steps):
    results = windows(CumulativeEventTimeWindows.of(step * steps, step), time)
    start = time // (step * steps) * (step * steps)
    assert results == [(start, start + n * step) for n in range(1, steps + 1) if start + n * step > time]


def test_windows_of_processing_time_go_by_the_clock():
    assert windows(TumblingProcessingTimeWindows.of("1 minute"), None) == [(60_000, 120_000)]
    assert windows(SlidingProcessingTimeWindows.of(60_000, 30_000), 5) == [(90_000, 150_000), (60_000, 120_000)]


ZONES = ["Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
def test_days_are_local_days(zone):
    local = ZoneInfo(zone)
    assigner = TumblingEventTimeWindows.of("1 day", time_zone=zone)
    time = int(datetime.datetime(2011, 1, 1, tzinfo=local).timestamp()) * 1000
    end = time + 3 * 366 * 24 * HOUR
    results = set()
    while time < end:
        ((start, stop),) = windows(assigner, time)
        assert start <= time < stop
        results.add((start, stop))
        time += 3 * HOUR + 7
    days = sorted(results)
    assert [start for start, _ in days[1:]] == [stop for _, stop in days[:-1]], "no gap, no overlap"
    lengths = {stop - start for start, stop in days}
    assert lengths <= {hours * HOUR // 2 for hours in range(44, 51)}
    for start, stop in days:
        noon = datetime.datetime.fromtimestamp((start + stop) // 2000, local)
        assert datetime.datetime.fromtimestamp(start // 1000, local).date() == noon.date()


def test_the_days_on_which_clocks_are_set():
    berlin = TumblingEventTimeWindows.of("1 day", time_zone="Europe/Berlin")
    at = {
        (month, day): int(datetime.datetime(2024, month, day, 12, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
        for month, day in [(3, 31), (10, 27), (7, 1)]
    }
    assert {
        date: (window.end - window.start) // HOUR for date, time in at.items() for window in windows(berlin, time)
    } == {
        (3, 31): 23,
        (10, 27): 25,
        (7, 1): 24,
    }


def test_a_week_that_slides_by_a_day_in_a_time_zone():
    at = int(datetime.datetime(2024, 4, 2, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
    results = windows(SlidingEventTimeWindows.of("7 days", "1 day", time_zone="Europe/Berlin"), at)
    zone = ZoneInfo("Europe/Berlin")
    dates = [
        tuple(datetime.datetime.fromtimestamp(edge // 1000, zone).strftime("%m-%d %H:%M") for edge in window)
        for window in results
    ]
    assert dates[0] == ("04-02 00:00", "04-09 00:00") and dates[-1] == ("03-27 00:00", "04-03 00:00")
    assert len(dates) == 7


@pytest.mark.parametrize("slide", ["1 day", "2 days"])
def test_a_day_that_a_time_zone_left_out_has_no_windows_of_its_own(slide):
    # On Samoa, 29 December 2011 was followed by 31 December.
    zone = ZoneInfo("Pacific/Apia")
    assigners = [
        SlidingEventTimeWindows.of("4 days", slide, time_zone="Pacific/Apia"),
        CumulativeEventTimeWindows.of("4 days", slide, time_zone="Pacific/Apia"),
    ]
    for day in (27, 28, 29, 31):
        time = int(datetime.datetime(2011, 12, day, 5, tzinfo=zone).timestamp()) * 1000
        for assigner in assigners:
            results = windows(assigner, time)
            assert results and all(start <= time < end for start, end in results)
            assert len(set(results)) == len(results), "an element is not added twice to one window"


@pytest.mark.parametrize("days", [2, 3, 4, 7])
def test_windows_over_a_day_that_a_time_zone_left_out_do_not_overlap(days):
    zone = ZoneInfo("Pacific/Apia")
    starts = {
        day: int(datetime.datetime.combine(datetime.date.fromordinal(day), datetime.time(), zone).timestamp()) * 1000
        for day in range(datetime.date(2011, 12, 10).toordinal(), datetime.date(2012, 1, 20).toordinal())
    }
    epoch = datetime.date(1970, 1, 1).toordinal()
    edges = [start for day, start in starts.items() if (day - epoch) % days == 0]
    tumbling = TumblingEventTimeWindows.of(f"{days} days", time_zone="Pacific/Apia")
    sliding = SlidingEventTimeWindows.of(f"{2 * days} days", f"{days} days", time_zone="Pacific/Apia")
    for first, second, third in zip(edges, edges[1:], edges[2:]):
        for time in {second, (second + third) // 2, third - 1}:
            assert windows(tumbling, time) == [(second, third)]
            assert (first, third) in windows(sliding, time)


@given(st.integers(-(10**12), 10**12), st.integers(-HOUR, HOUR))
def test_days_of_a_zone_without_changes_are_those_without_a_zone(time, offset):
    for size, slide in (("1 day", "1 day"), ("3 days", "2 days")):
        assigners = [SlidingEventTimeWindows.of(size, slide, offset, time_zone=zone) for zone in ("UTC", None)]
        assert windows(assigners[0], time) == windows(assigners[1], time)


@pytest.mark.parametrize("time", [10**15, -(10**15), 1_700_000_000_000_000_000])
def test_times_beyond_the_calendar_have_no_day(time):
    with pytest.raises(
        ProgramError,
        match=rf"{time} \(epoch ms\) is outside the years 1 to 9999, so it is no date in the time zone UTC",
    ):
        windows(TumblingEventTimeWindows.of("1 day", time_zone="UTC"), time)


def test_an_offset_moves_the_start_of_a_local_day():
    assigner = TumblingEventTimeWindows.of("1 day", "6 hours", time_zone="Europe/Berlin")
    at = int(datetime.datetime(2024, 7, 2, 5, 59, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
    ((start, _),) = windows(assigner, at)
    assert (
        datetime.datetime.fromtimestamp(start // 1000, ZoneInfo("Europe/Berlin")).isoformat()
        == "2024-07-01T06:00:00+02:00"
    )


def test_an_assigner_is_part_of_the_program():
    assigner = TumblingEventTimeWindows.of("1 day", "1 hour", time_zone="Europe/Berlin")
    again = pickle.loads(pickle.dumps(assigner))
    assert windows(again, 10**12) == windows(assigner, 10**12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(0), r"TumblingEventTimeWindows\.of\(\): the size must be at least one"),
        (lambda: TumblingEventTimeWindows.of("-1 minute"), r"the size: '-1 minute' is negative"),
        (lambda: TumblingEventTimeWindows.of("x"), r"the size: 'x' is not a duration"),
        (lambda: TumblingEventTimeWindows.of(10, 10), r"the offset must be smaller than 10 ms, not 10"),
        (lambda: SlidingEventTimeWindows.of(10, 0), r"SlidingEventTimeWindows\.of\(\): the slide must be at least"),
        (lambda: CumulativeEventTimeWindows.of(10, 3), r"10 ms is not a multiple of 3 ms"),
        (
            lambda: EventTimeSessionWindows.with_gap(0),
            r"EventTimeSessionWindows\.with_gap\(\): the gap must be at least",
        ),
        (
            lambda: EventTimeSessionWindows.with_dynamic_gap(NOT_A_FUNCTION),
            r"takes a function or a SessionWindow.*, not 5",
        ),
        (lambda: TumblingEventTimeWindows.of("1 day", time_zone="Mars"), r"a time zone name.*not 'Mars'"),
        (lambda: TumblingEventTimeWindows.of("1 hour", time_zone="UTC"), r"the size must be a number of whole days"),
        (lambda: CountTumblingWindowAssigner.of(0), r"the size must be an element count of at least 1, not 0"),
        (lambda: CountSlidingWindowAssigner.of(2, True), r"the slide must be an element count of at least 1, not True"),
    ],
)
def test_bad_windows_are_refused(make, message):
    with pytest.raises(ProgramError, match=message):
        make()


def test_an_element_without_a_timestamp_has_no_window_of_event_time():
    with pytest.raises(ProgramError, match=r"EventTimeSessionWindows got an element without a timestamp: put assign_"):
        windows(EventTimeSessionWindows.with_gap(5), None)


def test_windows_are_plain_values():
    assert TimeWindow(0, 5) == (0, 5) and TimeWindow(0, 5).cover(TimeWindow(3, 9)) == (0, 9)
    (window,) = windows(GlobalWindows.create(), None)
    assert window == () and window.max_timestamp() == 2**63 - 1
