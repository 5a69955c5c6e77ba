"""Key groups are the same in every process, and with every computation of the hash."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import os
import subprocess
import sys
import uuid
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._errors import KeyTypeError
from pillarbox._rows import column_to_list
from pillarbox._state.keys.key_groups import (
    MAX_MAX_PARALLELISM,
    default_max_parallelism,
    hashes_of_column,
    hashes_of_integers,
    key_group,
    key_group_range,
    owners,
    stable_hash,
    subtask_of,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
PRIME = 2**61 - 1


class Color(enum.Enum):
    RED = 1


class Word(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 7


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, eq=False)
class ById:
    x: int


@dataclasses.dataclass
class Mutable:
    x: int


Pair = namedtuple("Pair", "a b")
UTC = dt.timezone.utc
CET = dt.timezone(dt.timedelta(hours=1))


@pytest.mark.parametrize(
    "equal",
    [
        (1, 1.0, True, Decimal(1), Fraction(1), np.int8(1), np.float32(1), np.bool_(True), 1 + 0 * 2**70),
        (0, 0.0, -0.0, False, Decimal("0.00"), np.uint64(0)),
        (-1, -1.0, Decimal(-1), np.int64(-1)),
        (2**70, float(2**70), Decimal(2**70)),
        (0.5, Fraction(1, 2), Decimal("0.5"), np.float64(0.5)),
        ("red", Word.RED, np.str_("red")),
        (7, Level.LOW, 7.0),
        (b"ab", np.bytes_(b"ab")),
        ((1, "a"), (1.0, "a"), Pair(1, "a"), Row.of(p=1, q="a"), (True, np.str_("a"))),
        (dt.datetime(2020, 1, 1, 12, tzinfo=UTC), dt.datetime(2020, 1, 1, 13, tzinfo=CET)),
        (dt.time(12, tzinfo=UTC), dt.time(13, tzinfo=CET)),
        (dt.timedelta(hours=24), dt.timedelta(days=1)),
        (Point(1), Point(1, "seen"), Point(True)),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
        (float("inf"), Decimal("Infinity")),
    ],
    ids=lambda equal: repr(equal[0])[:30],
)
def test_equal_keys_share_the_hash(equal):
    for key in equal:
        assert key == equal[0]
        assert stable_hash(key) == stable_hash(equal[0]), key


@given(st.floats(allow_nan=False) | INT64 | st.decimals(allow_nan=False) | st.fractions())
def test_equal_numbers_share_the_hash(number):
    for convert in (float, int, Decimal, Fraction):
        try:
            other = convert(number)
        except (OverflowError, TypeError, ValueError):
            continue
        if other == number:
            assert stable_hash(other) == stable_hash(number)


# Written down, so that no version of pillarbox or Python changes where state is: that would lose it.
GOLDEN = {
    "None": 3192974718,
    "1": 2654435769,
    "-1": 3281063053,
    "'card-17'": 1582235763,
    "'\\ud800'": 2945480988,
    "b'x'": 3353303738,
    "(1, 'a', None)": 4145792956,
    "3.25": 2191945004,
    "datetime.date(2020, 2, 29)": 765188055,
    "datetime.datetime(2020, 2, 29, 12, 30)": 1274713337,
    "datetime.time(12, 30)": 3200902403,
    "datetime.timedelta(days=1)": 4255947004,
    "decimal.Decimal('1.10')": 2946806257,
    "uuid.UUID(int=5)": 387276959,
}


def test_the_hash_is_the_same_in_every_process():
    program = (
        "import datetime, decimal, sys, uuid; from pillarbox._state.keys.key_groups import stable_hash;"
        f"print([stable_hash(eval(text)) for text in {list(GOLDEN)!r}])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert eval(done.stdout) == list(GOLDEN.values())


@given(st.lists(INT64, max_size=50), st.integers(1, MAX_MAX_PARALLELISM))
@example([0, 1, -1, -2, PRIME, PRIME - 1, PRIME + 1, -PRIME, -PRIME - 1, 2**63 - 1, -(2**63), 2 * PRIME], 128)
@example([4 * PRIME + 3, -(4 * PRIME) - 3, 2**62, -(2**62)], 32768)
def test_columns_of_integers_go_where_each_goes(keys, max_parallelism):
    groups = hashes_of_integers(np.array(keys, dtype=np.int64)) % np.uint64(max_parallelism)
    assert groups.tolist() == [key_group(key, max_parallelism) for key in keys]


@given(st.integers(1, 300).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, max(p, 2000)))))
def test_ranges_partition_the_key_groups(parallelisms):
    parallelism, max_parallelism = parallelisms
    ranges = [key_group_range(subtask, max_parallelism, parallelism) for subtask in range(parallelism)]
    assert [group for range_ in ranges for group in range_] == list(range(max_parallelism))
    assert all(len(range_) for range_ in ranges)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    table = owners(max_parallelism, parallelism)
    for subtask, key_groups in enumerate(ranges):
        assert (
            {table[group] for group in key_groups}
            == {subtask}
            == {subtask_of(g, max_parallelism, parallelism) for g in key_groups}
        )


def test_keys_spread_evenly():
    for keys in (range(10_000), [f"card-{n}" for n in range(10_000)], [float(n) / 8 for n in range(10_000)]):
        counts = np.bincount([key_group(key, 128) for key in keys], minlength=128)
        assert counts.max() < 2 * 10_000 / 128


@pytest.mark.parametrize("key", [float("nan"), Decimal("NaN"), Decimal("sNaN"), np.float32("nan"), (1, float("nan"))])
def test_nan_is_refused(key):
    with pytest.raises(KeyTypeError, match="NaN"):
        stable_hash(key)


@pytest.mark.parametrize("key", [[], {}, set(), object(), frozenset(), Mutable(1), ById(1), (1, []), lambda: 0, int])
def test_what_has_no_common_hash_is_refused(key):
    with pytest.raises(KeyTypeError, match=r"cannot key by .* of type .*let the key function give"):
        stable_hash(key)


def test_default_max_parallelism():
    assert [default_max_parallelism(p) for p in (1, 4, 64, 65, 128, 200)] == [2, 8, 128, 128, 128, 200]
    assert [default_max_parallelism(2, 1, own) for own in (4, 5, 40_000)] == [4, 5, 32_768]


def hashes(column: pa.Array, **options: bool) -> list[int]:
    result = hashes_of_column(column, {}, **options)
    assert result is not None
    return list(map(int, result))


@pytest.mark.parametrize(
    "values",
    [
        [dt.date.min, dt.date.max, dt.date(1969, 12, 31), None],
        [dt.datetime(1, 1, 1), dt.datetime.max, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), None],
        [dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(2024, 3, 31, 1, tzinfo=dt.timezone.utc), None],
        [dt.time.min, dt.time.max, dt.time(12, 0, 0, 1), None],
        [dt.timedelta.resolution, dt.timedelta(days=-106_751_991), dt.timedelta(0), None],
        [0.5, -0.0, float("inf"), None],
        [Decimal("1.00"), Decimal("-99999999999999999999.5"), Decimal(0), None],
        [b"", b"\0", b"\xff", None],
        ["", "ä", None],
        [True, False, None],
        [5, -1, -2, None],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_columns_go_where_each_value_goes(values):
    for some in values, values[:-1]:
        column = pa.array(some)
        for array in column, *([column.cast(pa.time64("ns"))] if pa.types.is_time(column.type) else []):
            assert hashes(array) == list(map(stable_hash, some))


def test_columns_of_times_that_python_cannot_hold_have_hashes():
    for kind in pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us"):
        bits = pa.int32() if kind == pa.date32() else pa.int64()
        column = pa.array([2**31 - 1 if bits == pa.int32() else 2**63 - 1, -(2**31), 0], bits).cast(kind)
        assert len(set(hashes(column))) == 3


def test_structs_go_where_rows_go():
    rows = [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": {"c": None}}, {"a": 2, "b": None}, None]
    column = pa.array(rows)
    assert hashes(column) == list(map(stable_hash, column_to_list(column)))
    assert hashes(column[1:]) == hashes(column)[1:]
    assert hashes_of_column(pa.array([{"a": [1]}]), {}) is None
    nans = pa.array([{"a": math.nan}, {"a": None}])
    assert hashes(nans, nan_is_key=True) == [stable_hash((None,))] * 2


def test_nan_is_a_key_where_rows_are_grouped():
    for kind in pa.float32(), pa.float64():
        column = pa.array([float("nan"), 1.5, None], kind)
        assert hashes_of_column(column, {}) is None
        assert hashes(column, nan_is_key=True) == [stable_hash(None), stable_hash(1.5), stable_hash(None)]
