from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from pillarbox import _rows
from pillarbox._errors import UnknownColumnError
from pillarbox._rows import Row, column_to_list, row_class, rows_from_arrow, timestamps_ms
from pillarbox._time.timestamp_assigner import to_timestamp

UTC = timezone.utc


# --- Row ---


def test_a_value_is_reached_in_every_way():
    row = Row.of(card="c1", amount=2.5)
    card, amount = row
    assert (card, amount) == ("c1", 2.5)
    assert row.card == row["card"] == row[0] == row[-2] == "c1"
    assert row.amount == row["amount"] == row[1] == 2.5
    assert row[:1] == ("c1",)
    assert row.get("card") == "c1"
    assert row.get("nothing") is None
    assert row.get("nothing", 7) == 7


def test_columns_with_any_name_are_reached_by_name():
    names = ("first name", "class", "_id", "__class__", "_fields", "_make", "é", "")
    row = row_class(names)(range(len(names)))
    assert [row[name] for name in names] == list(range(len(names)))
    assert getattr(row, "class") == 1
    assert row._id == 2
    assert row.é == 6
    assert isinstance(row, Row)
    assert row._fields == names
    assert row._make(range(8)) == row
    assert not hasattr(row, "first name")


def test_a_column_hides_a_method_of_its_name():
    row = Row.of(count=3, get="x", index=1)
    assert [getattr(row, name) for name in ("count", "get", "index")] == [3, "x", 1]
    assert row["get"] == "x"


def test_unknown_columns_are_named_with_those_that_exist():
    row = Row.of(card="c1", amount=2.5)
    with pytest.raises(UnknownColumnError) as caught:
        row["crad"]
    assert str(caught.value) == "no column 'crad'; the columns are card, amount"
    assert isinstance(caught.value, KeyError)
    with pytest.raises(AttributeError, match="crad"):
        row.crad
    with pytest.raises(IndexError):
        row[2]
    with pytest.raises(TypeError):
        row[None]  # type: ignore[call-overload]


def test_a_row_cannot_be_changed():
    row = Row.of(a=1)
    with pytest.raises(AttributeError):
        row.a = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        row.b = 2  # type: ignore[attr-defined]


def test_same_columns_same_class():
    assert row_class(("a", "b")) is row_class(("a", "b"))
    assert row_class(("a", "b")) is not row_class(("b", "a"))
    assert type(Row.of(a=1, b=2)) is row_class(("a", "b"))


def test_threads_that_race_get_one_class():
    count, fields = 8, tuple(f"racing{i}" for i in range(300))
    start, classes = threading.Barrier(count), []

    def make() -> None:
        start.wait()
        classes.append(row_class(fields))

    threads = [threading.Thread(target=make) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(classes) == count
    assert len(set(classes)) == 1


def test_names_that_come_from_the_data_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(_rows, "_classes", {})
    monkeypatch.setattr(_rows, "_MOST_CLASSES", 10)
    first = Row(id=1)
    for number in range(100):
        assert Row(**{f"word {number}": number})[0] == number
    assert len(_rows._classes) <= 10
    again = Row(id=1)
    assert again == first and again.id == 1 and pickle.loads(pickle.dumps(first)) == first


def test_columns_must_differ():
    with pytest.raises(ValueError, match="column names must be unique, but a occurs more than once"):
        row_class(("a", "b", "a"))


def test_make_counts_the_values():
    make = row_class(("a", "b"))._make
    assert make(iter([1, 2])) == (1, 2)
    with pytest.raises(TypeError, match="2 values expected, got 1"):
        make([1])


def test_replace():
    row = Row.of(a=1, b=2)
    changed = row._replace(b=3)
    assert tuple(changed) == (1, 3)
    assert type(changed) is type(row)
    assert tuple(row) == (1, 2)
    with pytest.raises(UnknownColumnError):
        row._replace(c=3)


def test_as_dict():
    row = Row.of(a=1, b=[Row.of(x=1)], c={"k": Row.of(y=2)}, d=Row.of(z=3))
    assert row.as_dict() == row.asDict() == {"a": 1, "b": [(1,)], "c": {"k": (2,)}, "d": (3,)}
    assert type(row.as_dict()["d"]) is row_class(("z",))
    plain = {"a": 1, "b": [{"x": 1}], "c": {"k": {"y": 2}}, "d": {"z": 3}}
    assert row.as_dict(recursive=True) == row.asDict(True) == plain
    assert list(row.as_dict()) == ["a", "b", "c", "d"]


def test_repr():
    assert repr(Row.of(a=1, b="x")) == "Row(a=1, b='x')"
    assert repr(Row.of()) == "Row()"
    assert str(Row.of(a=Row.of(b=None))) == "Row(a=Row(b=None))"


def test_equality_and_hash_are_the_tuples():
    assert Row.of(a=1, b=2) == (1, 2) == Row.of(x=1, y=2)
    assert Row.of(a=1) != (2,)
    assert hash(Row.of(a=1, b=2)) == hash((1, 2))
    assert Row.of(a=1) < Row.of(a=2)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickling_gives_the_same_class(dumps, protocol):
    rows = [Row.of(a=1, b=Row.of(x="y")), Row.of(a=2, b=None), Row.of()]
    again = pickle.loads(dumps(rows, protocol))
    assert again == rows
    assert list(map(type, again)) == list(map(type, rows))
    assert type(again[0].b) is row_class(("x",))


def test_many_rows_pickle_their_column_names_once():
    rows = [row_class(("some_long_column_name",))((i,)) for i in range(100)]
    assert pickle.dumps(rows).count(b"some_long_column_name") == 1


def test_copies():
    row = Row.of(a=[1])
    assert copy.copy(row) == row
    assert copy.copy(row).a is row.a
    deep = copy.deepcopy(row)
    assert deep == row
    assert deep.a is not row.a
    assert type(deep) is type(row)


def test_a_row_arrives_in_a_process_that_never_saw_its_class():
    program = (
        "import pickle, sys\n"
        "row = pickle.load(sys.stdin.buffer)\n"
        "assert row.amount == 2.5 and row['first name'] == 'x', row\n"
        "sys.stdout.buffer.write(pickle.dumps((row, type(row)._fields)))\n"
    )
    row = row_class(("amount", "first name"))((2.5, "x"))
    answer = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(row), capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr.decode()
    again, fields = pickle.loads(answer.stdout)
    assert again == row
    assert type(again) is type(row)
    assert fields == ("amount", "first name")


# --- Arrow to Python ---


def same(left: object, right: object) -> bool:
    return repr(left) == repr(right)


COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "int": ([1, -(2**63), 2**63 - 1], pa.int64()),
    "byte": ([1, -128], pa.int8()),
    "unsigned": ([2**64 - 1, 0], pa.uint64()),
    "float": ([1.0, float("nan"), float("-inf")], pa.float64()),
    "float32": ([0.5, float("nan")], pa.float32()),
    "bool": ([True, False, True], pa.bool_()),
    "string": (["", "é", "x" * 100], pa.string()),
    "large string": (["", "é"], pa.large_string()),
    "binary": ([b"", b"\xff\x00"], pa.binary()),
    "large binary": ([b"", b"\xff\x00"], pa.large_binary()),
    "decimal": ([Decimal("1.20"), Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "date": ([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)], pa.date32()),
    "date64": ([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)], pa.date64()),
    "timestamp_ntz": (
        [datetime.min, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.max],
        pa.timestamp("us"),
    ),
    "timestamp": (
        [
            datetime.min.replace(tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ],
        pa.timestamp("us", tz="Europe/Berlin"),
    ),
    "timestamp s": ([datetime(1969, 12, 31, 23, 59, 59)], pa.timestamp("s")),
    "timestamp ms": (
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999000)],
        pa.timestamp("ms"),
    ),
    "timestamp ns": ([datetime(1969, 12, 31, 23, 59, 59, 999999)], pa.timestamp("ns")),
    "duration": (
        [timedelta(microseconds=-1), timedelta(days=106751991), timedelta(0)],
        pa.duration("us"),
    ),
    "duration ns": ([timedelta(microseconds=-1)], pa.duration("ns")),
    "duration s": ([timedelta(seconds=-1)], pa.duration("s")),
    "list": ([[1, 2], [], [None, 3]], pa.list_(pa.int64())),
    "large list": ([[1, 2], [], [None, 3]], pa.large_list(pa.int64())),
    "list of lists": ([[["a"], []], [], [None, [None]]], pa.list_(pa.list_(pa.string()))),
    "map": ([{"a": 1, "b": None}, {}], pa.map_(pa.string(), pa.int64())),
    "struct": (
        [Row.of(x=1, y=Row.of(z=["a"])), Row.of(x=None, y=None)],
        pa.struct(
            [("x", pa.int64()), ("y", pa.struct([("z", pa.list_(pa.string()))]))],
        ),
    ),
    "dictionary": (["a", "b", "a"], pa.dictionary(pa.int32(), pa.string())),
    "null": ([None, None], pa.null()),
}


def arrow(values, kind):
    """Return an Arrow array. Structs are converted to dicts, and maps to pairs, as pyarrow requires."""

    def plain(value):
        if isinstance(value, Row):
            return {name: plain(part) for name, part in value.as_dict().items()}
        return list(value.items()) if isinstance(value, dict) else value

    return pa.array(list(map(plain, values)), type=kind)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns(name):
    values, kind = COLUMNS[name]
    assert same(column_to_list(arrow(values, kind)), values)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_with_nulls(name):
    values, kind = COLUMNS[name]
    values = [None, *values, None]
    assert same(column_to_list(arrow(values, kind)), values)


@pytest.mark.parametrize("name", COLUMNS)
def test_slices_of_columns(name):
    values, kind = COLUMNS[name]
    values = [None, *values, *values, None, *values]
    column = arrow(values, kind)
    for start in range(len(values) + 1):
        for length in (0, 1, 3):
            expected = values[start : start + length]
            assert same(column_to_list(column.slice(start, length)), expected)


@pytest.mark.parametrize("name", COLUMNS)
def test_empty_columns_and_columns_of_nulls(name):
    kind = COLUMNS[name][1]
    assert column_to_list(pa.array([], type=kind)) == []
    assert column_to_list(pa.array([None] * 3, type=kind)) == [None] * 3


def test_every_timestamp_is_in_utc_itself():
    values = column_to_list(arrow([datetime(2020, 7, 1)], pa.timestamp("us", tz="Asia/Tokyo")))
    assert values[0].tzinfo is UTC


def test_values_of_null_slots_do_not_matter():
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.duration("us")):
        memory = pa.py_buffer(np.array([0, -(2**63), 2**63 - 1], np.int64))
        column = pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\x01"), memory])
        assert column_to_list(column)[1:] == [None, None]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.timestamp("us"), 253402300800 * 10**6),
        (pa.timestamp("us", tz="UTC"), 253402300800 * 10**6),
        (pa.timestamp("us"), -(2**63)),
        (pa.timestamp("s"), 2**62),
        (pa.timestamp("ms"), -(2**62)),
        (pa.date32(), 2932897),
        (pa.date32(), -(2**31)),
        (pa.duration("us"), -(2**63)),
        (pa.duration("s"), -9223372036855),
    ],
)
def test_times_that_python_does_not_have(kind, number):
    width = np.int32 if pa.types.is_date32(kind) else np.int64
    column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(np.array([0, number], width))])
    with pytest.raises(ValueError, match="at row 1 is outside"):
        column_to_list(column)


def test_rows_from_arrow():
    batch = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", "y"]})
    rows = rows_from_arrow(batch)
    assert repr(rows) == "[Row(a=1, b='x'), Row(a=None, b='y')]"
    assert type(rows[0]) is row_class(("a", "b"))


def test_rows_from_a_batch_without_rows_or_without_columns():
    assert rows_from_arrow(pa.RecordBatch.from_pydict({"a": []})) == []
    nothing = pa.RecordBatch.from_pydict({"a": [1, 2]}).select([])
    assert rows_from_arrow(nothing) == [()] * nothing.num_rows


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1)), st.integers(0, 5))
def test_integers_stay_integers(values, start):
    assert same(column_to_list(pa.array(values, pa.int64())[start:]), values[start:])


@given(st.lists(st.none() | st.floats()))
def test_nan_is_not_null(values):
    assert same(column_to_list(pa.array(values, pa.float64())), values)


@given(st.lists(st.none() | st.datetimes()))
def test_timestamps_to_the_microsecond(values):
    aware = [value and value.replace(tzinfo=UTC) for value in values]
    assert column_to_list(pa.array(values, pa.timestamp("us"))) == values
    assert column_to_list(pa.array(values, pa.timestamp("us", tz="UTC"))) == aware


# --- timestamps_ms ---


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, -1, 2**62], pa.int64(), [0, -1, 2**62]),
        ([7], pa.int32(), [7]),
        ([-1, 1, 1999], pa.timestamp("us"), [-1, 0, 1]),
        ([-1, -1000, -1001], pa.timestamp("us", tz="Asia/Tokyo"), [-1, -1, -2]),
        ([-1, 1], pa.timestamp("s"), [-1000, 1000]),
        ([-1, 1], pa.timestamp("ms"), [-1, 1]),
        ([-1, 1_999_999], pa.timestamp("ns"), [-1, 1]),
        ([-1, 1], pa.date32(), [-86_400_000, 86_400_000]),
    ],
)
def test_timestamps_ms(values, kind, expected):
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    column = pa.array([99, *values], width).cast(kind)[1:]
    result = timestamps_ms(column, timezone.utc)
    assert result.dtype == np.int64
    assert result.tolist() == expected


def test_timestamps_ms_of_date64_and_of_nothing():
    assert timestamps_ms(pa.array([date(1969, 12, 31)], pa.date64()), timezone.utc).tolist() == [-86_400_000]
    assert timestamps_ms(pa.array([], pa.timestamp("us")), timezone.utc).tolist() == []


@given(st.lists(st.datetimes(), min_size=1))
def test_timestamps_ms_floor(values):
    epoch = datetime(1970, 1, 1)
    expected = [(value - epoch) // timedelta(milliseconds=1) for value in values]
    assert timestamps_ms(pa.array(values, pa.timestamp("us")), timezone.utc).tolist() == expected


KINDS = [
    *(pa.date32(), pa.date64(), pa.int8(), pa.int64()),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "+05:30")),
]


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=5))),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]).map(ZoneInfo),
)
def test_a_column_has_the_timestamps_of_its_values(kind_and_values, zone):
    kind, values = kind_and_values
    column = pa.array(values, kind)
    assert timestamps_ms(column, zone).tolist() == [to_timestamp(value, zone) for value in column_to_list(column)]


def values_of(kind):
    if pa.types.is_date(kind):
        return st.dates(date(1, 1, 3), date(9999, 12, 29))
    if pa.types.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    zones = st.none() if kind.tz is None else st.just(timezone.utc)
    return st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)


def test_timestamps_ms_refuses_nulls_and_other_columns():
    numbers = pa.array([1, 2, None, None], pa.int32())
    for column in (numbers, numbers.cast(pa.date32()), numbers.cast("int64").cast("timestamp[us]")):
        with pytest.raises(ValueError, match="timestamp at row 2 is null"):
            timestamps_ms(column)
    for column in (pa.array([1]).cast("timestamp[us]"), pa.array([1], pa.int32()).cast(pa.date32())):
        with pytest.raises(ValueError, match=r"the type (timestamp\[us\]|date32\[day\]) has no time zone"):
            timestamps_ms(column)
    with pytest.raises(TypeError, match="not string"):
        timestamps_ms(pa.array(["2020-01-01"]))


def test_a_class_of_rows_may_be_made_while_garbage_is_collected():
    class Collecting(str):
        def isidentifier(self) -> bool:
            gc.collect()
            return True

    fields = (Collecting("one"), Collecting("two"))
    row = row_class(fields)([1, 2])
    assert (row.one, row.two) == (1, 2)


# --- Row, as programs make it ---


def test_rows_of_values_and_of_names():
    assert repr(Row(card="c1", amount=2.5)) == "Row(card='c1', amount=2.5)"
    assert type(Row(card="c1", amount=2.5)) is row_class(("card", "amount"))
    assert repr(Row("c1", 2.5)) == "Row(f0='c1', f1=2.5)"
    assert Row("c1", 2.5).f1 == Row("c1", 2.5)[1] == 2.5
    assert Row([1, 2]) == ([1, 2],)
    assert repr(Row()) == "Row()"
    assert Row(self=1, cls=2).as_dict() == {"self": 1, "cls": 2}
    with pytest.raises(TypeError, match="not both"):
        Row(1, amount=2)
    assert copy.deepcopy(Row("c1", 2)) == pickle.loads(pickle.dumps(Row("c1", 2))) == ("c1", 2)


def test_a_row_of_names_makes_rows():
    payment = Row("card", "amount")
    assert repr(payment("c1", 2.5)) == "Row(card='c1', amount=2.5)"
    with pytest.raises(TypeError, match="2 values expected, got 1"):
        payment("c1")
    with pytest.raises(TypeError, match="column names must be strings"):
        Row("card", 5)("c1", 2)


def test_a_name_is_in_a_row_that_has_such_a_column():
    row = Row(card="c1", amount=2.5)
    assert "card" in row
    assert "c1" not in row
    assert "c1" in tuple(row)


def test_the_error_for_changing_a_row_says_how_to_make_another():
    row = Row(card="c1", amount=2.5)
    with pytest.raises(TypeError, match=r"a row is immutable: row\._replace\(amount=\.\.\.\)"):
        row["amount"] = 3.5
    with pytest.raises(TypeError, match="a row is immutable"):
        row[1] = 3.5
    with pytest.raises(AttributeError):
        row.amount = 3.5  # type: ignore[attr-defined]
    assert row._replace(amount=3.5) == ("c1", 3.5)


def test_classes_with_names_are_called_without_python():
    calls: list[str] = []
    pair = row_class(("a", "b"))
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        rows = list(map(pair, [(1, 2), (3, 4)]))
    finally:
        sys.setprofile(None)
    assert rows == [(1, 2), (3, 4)]
    assert "call" not in calls
