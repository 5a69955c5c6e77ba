from __future__ import annotations

import datetime
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._time.duration import Duration, Time, positive_millis, to_millis

DAY = 86_400_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (1234, 1234),
        (np.int64(5), 5),
        (datetime.timedelta(days=1, milliseconds=1), DAY + 1),
        (datetime.timedelta(microseconds=1999), 1),
        (Duration.of_days(2), 2 * DAY),
        (Duration.of_hours(1), 3_600_000),
        (Duration.of_minutes(2), 120_000),
        (Duration.of_seconds(3), 3000),
        (Duration.of_millis(4), 4),
        (Duration.of_nanos(1_000_000), 1),
        (Duration.of_nanos(1_999_999), 1),
        (Time.days(2), 2 * DAY),
        (Time.hours(1), 3_600_000),
        (Time.minutes(2), 120_000),
        (Time.seconds(3), 3000),
        (Time.milliseconds(4), 4),
        ("5 seconds", 5000),
        ("10 min", 600_000),
        ("1 hour 30 minutes", 5_400_000),
        ("1h30m", 5_400_000),
        ("200ms", 200),
        ("1 day", DAY),
        ("2 weeks", 14 * DAY),
        ("INTERVAL 5 Seconds", 5000),
        ("  1.5 s ", 1500),
        ("0.1 seconds", 100),
        ("1 day -1 hour", DAY - 3_600_000),
        ("2500 microseconds", 2),
        ("1000 us", 1),
        ("0 s", 0),
    ],
)
def test_accepted_forms(value, expected):
    assert to_millis(value) == expected
    assert type(to_millis(value)) is int


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        float("nan"),
        "",
        "interval ",
        "5",
        "seconds",
        "5 fortnights",
        "1 month",
        "5 seconds or so",
        "5 seconds 3",
        "1..5 s",
        "1e3 s",
        "\u0665 seconds",
        [],
        object,
        Duration,
    ],
)
def test_nonsense_is_one_clear_value_error(value):
    with pytest.raises(ValueError, match=r"is not a duration: pass .*'200ms'") as caught:
        to_millis(value)
    assert repr(value)[:20] in str(caught.value)


@pytest.mark.parametrize("value", [-1, "-5 seconds", Time.hours(-8), datetime.timedelta(microseconds=-1)])
def test_negative_is_an_error_except_for_offsets(value):
    with pytest.raises(ValueError, match="is negative"):
        to_millis(value)
    assert to_millis(value, allow_negative=True) < 0


def test_more_than_64_bits_is_an_error():
    assert to_millis(2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match="64 bits"):
        to_millis(2**63)


def test_classes_of_others_with_the_same_methods_are_accepted():
    class TheirTime:
        def to_milliseconds(self):
            return 7

    assert to_millis(TheirTime()) == 7  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Duration.of_seconds, Time.days, Duration.of_millis])
@pytest.mark.parametrize("count", [1.5, "1", None, True])
def test_constructors_take_whole_numbers_only(make, count):
    with pytest.raises(ValueError, match="whole number"):
        make(count)


def test_durations_are_values():
    assert Duration.of_seconds(60) == Duration.of_minutes(1) != Duration.of_minutes(2)
    assert len({Time.seconds(60), Time.minutes(1)}) == 1
    assert Duration.of_millis(1) != Time.milliseconds(1)
    assert pickle.loads(pickle.dumps(Time.hours(1))) == Time.hours(1)
    assert repr(Duration.of_seconds(1)) == "Duration(1000 ms)"
    assert Duration.of_days(1).to_millis() == Time.days(1).to_milliseconds() == DAY


def test_positive_millis():
    assert positive_millis("1 ms", "the period") == 1
    with pytest.raises(ValueError, match="the period must be at least one millisecond, not 0"):
        positive_millis(0, "the period")


UNITS = {"week": 7 * DAY, "day": DAY, "hour": 3_600_000, "minute": 60_000, "second": 1000, "ms": 1}


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS))), min_size=1),
    st.sampled_from(["", " ", "  "]),
    st.booleans(),
)
def test_strings_round_trip(parts, space, capitals):
    text = " ".join(f"{count}{space}{unit}" for count, unit in parts)
    expected = sum(count * UNITS[unit] for count, unit in parts)
    assert to_millis(text.upper() if capitals else text) == expected


@given(st.integers(0, 10**15))
def test_millis_round_trip_through_every_form(millis):
    assert to_millis(millis) == millis
    assert to_millis(f"{millis} ms") == millis
    assert to_millis(Duration.of_millis(millis)) == millis
    assert to_millis(Time.milliseconds(millis)) == millis
    assert to_millis(datetime.timedelta(milliseconds=millis)) == millis


@given(st.timedeltas())
def test_timedeltas_are_cut_exactly(delta):
    exact = Fraction(delta // datetime.timedelta(microseconds=1), 1000)
    millis = to_millis(delta, allow_negative=True)
    assert millis <= exact < millis + 1
