from __future__ import annotations

import math
import pickle
import re
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, Optional
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyspark.sql.types as spark_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from pillarbox._errors import ConfigurationError, PillarboxError, ProgramError, TypeMismatchError
from pillarbox._rows import Row, row_class, rows_from_arrow
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import column_names, resolve_schema
from pillarbox._types.type_information import Types

UTC = timezone.utc


def struct(*fields: tuple[str, DataType] | tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(*field) for field in fields])


def encoder(schema: StructType, timezone: str = "UTC") -> RowEncoder:
    return RowEncoder(schema, "flights", timezone)


def through(data_type: DataType, values: list[Any], timezone: str = "UTC") -> list[Any]:
    schema = struct(("value", data_type), ("other", StringType()))
    batch = encoder(schema, timezone).encode([(value, "x") for value in values])
    return [row.value for row in rows_from_arrow(batch)]


def refusal(schema: StructType, values: list[Any]) -> str:
    with pytest.raises(TypeMismatchError) as caught:
        encoder(schema).encode(values)
    return str(caught.value)


def misfit(data_type: DataType, *values: Any, nullable: bool = True) -> str:
    schema = struct(("value", data_type, nullable), ("other", StringType()))
    return refusal(schema, [(value, "x") for value in values])


# --- declarations ---


@dataclass
class Address:
    street: str
    number: Optional[int]  # noqa: UP045 - the old spelling is to be understood, too


class Point(NamedTuple):
    x: float
    y: float | None


@dataclass
class Everything:
    an_int: int
    a_float: float
    a_str: str
    a_bool: bool
    a_bytes: bytes
    a_datetime: datetime
    a_date: date
    a_time: time
    a_timedelta: timedelta
    a_decimal: Decimal
    a_list: list[int | None]
    a_tuple: tuple[str, ...]
    a_dict: dict[str, Address]
    optional: list[str] | None
    address: Address
    point: Point | None


EVERYTHING = struct(
    ("an_int", LongType(), False),
    ("a_float", DoubleType(), False),
    ("a_str", StringType(), False),
    ("a_bool", BooleanType(), False),
    ("a_bytes", BinaryType(), False),
    ("a_datetime", TimestampType(), False),
    ("a_date", DateType(), False),
    ("a_time", TimeType(), False),
    ("a_timedelta", DayTimeIntervalType(), False),
    ("a_decimal", DecimalType(38, 18), False),
    ("a_list", ArrayType(LongType(), True), False),
    ("a_tuple", ArrayType(StringType(), False), False),
    (
        "a_dict",
        MapType(
            StringType(),
            struct(("street", StringType(), False), ("number", LongType(), True)),
            False,
        ),
        False,
    ),
    ("optional", ArrayType(StringType(), False), True),
    ("address", struct(("street", StringType(), False), ("number", LongType(), True)), False),
    ("point", struct(("x", DoubleType(), False), ("y", DoubleType(), True)), True),
)


def test_dataclasses_and_named_tuples():
    assert resolve_schema(Everything) == EVERYTHING
    assert resolve_schema(Point) == struct(("x", DoubleType(), False), ("y", DoubleType(), True))


def test_a_struct_type_is_itself():
    schema = struct(("a", LongType()))
    assert resolve_schema(schema) is schema


@dataclass
class Odd:
    fine: int
    odd: complex


@dataclass
class Deep:
    odds: list[dict[str, Odd]]


@dataclass
class Bare:
    things: list  # type: ignore[type-arg]


@dataclass
class Pair:
    pair: tuple[int, str]


@dataclass
class Either:
    either: int | str


@dataclass
class NullKeys:
    by_name: dict[str | None, int]


@dataclass
class Self:
    parent: Self | None


@dataclass
class Nothing:
    pass


Untyped = namedtuple("Untyped", "a b")


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (Odd, "Odd.odd is annotated complex, which has no Spark type; annotate it with int"),
        (Deep, "Odd.odd is annotated complex, which has no Spark type"),
        (Bare, "Bare.things is annotated list, "),
        (Pair, "Pair.pair is annotated tuple[int, str], "),
        (Either, "Either.either is annotated int | str, "),
        (NullKeys, "NullKeys.by_name is annotated dict[str | None, int], "),
        (Self, "Self contains itself"),
        (Untyped, "Untyped.a has no annotation; use typing.NamedTuple"),
        (LongType(), "LongType() does not declare columns; declare them as a DDL string"),
        (int, "<class 'int'> does not declare columns"),
        (Address("x", 1), "does not declare columns"),
        (None, "None does not declare columns"),
    ],
)
def test_types_that_declare_no_columns(declared, text):
    with pytest.raises(ProgramError, match=re.escape(text)):
        resolve_schema(declared)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [("Missing", "NameError: name 'Missing'"), ("math.missing", "AttributeError: "), ("int |", "SyntaxError: ")],
)
def test_annotations_that_cannot_be_resolved(annotation, reason):
    @dataclass
    class Local:
        other: int

    Local.__annotations__["other"] = annotation
    with pytest.raises(ProgramError, match=rf"annotation of Local cannot be resolved \({reason}"):
        resolve_schema(Local)


@pytest.mark.parametrize("declared", [StructType([]), Nothing, Types.ROW([])])
def test_no_columns_at_all(declared):
    with pytest.raises(ValueError, match="declares no columns; declare at least one"):
        resolve_schema(declared)


def test_ddl_without_a_session(monkeypatch):
    def no_session(ddl):
        raise RuntimeError("[SESSION_OR_CONTEXT_NOT_EXISTS]")

    monkeypatch.setattr(StructType, "fromDDL", no_session)
    assert resolve_schema("a INT NOT NULL, `b c` ARRAY<STRING> COMMENT 'it\\'s'") == StructType(
        [
            StructField("a", IntegerType(), False),
            StructField("b c", ArrayType(StringType()), True, {"comment": "it's"}),
        ]
    )
    for ddl in (
        "a GEOGRAPHY",
        "a INT,",
        "a ARRAY<INT",
        "a DECIMAL(1, 2, 3)",
        "INT",
        "a INTERVAL DAY TO MONTH",
        "a INT b",
    ):
        with pytest.raises(ConfigurationError, match=r"without a Spark session, the columns .* cannot be parsed: "):
            resolve_schema(ddl)


NAMED = {
    "tail STRING, delay INT NOT NULL": ("tail", "delay"),
    "xs ARRAY<STRUCT<a: DATE, b: INT>>, m MAP<STRING, DECIMAL(10, 2)>": ("xs", "m"),
    "`a b` STRING COMMENT 'x, `y`', c: BIGINT": ("a b", "c"),
    "`a``b` INT, d DOUBLE COMMENT 'it\\'s, so'": ("a`b", "d"),
    "from STRING, `to` STRING": ("from", "to"),
}


@pytest.mark.parametrize("ddl", NAMED)
def test_names_of_columns_are_known_without_a_session(ddl):
    assert column_names(ddl) == NAMED[ddl]


@pytest.mark.spark
@pytest.mark.parametrize("ddl", NAMED)
def test_names_of_columns_are_those_that_spark_reads(ddl, spark):
    assert tuple(resolve_schema(ddl).names) == NAMED[ddl]


def test_arguments_that_name_no_columns():
    class Pair(NamedTuple):
        left: int
        right: str

    for declared in ("", "INT", "a", "a INT,", "a INT, a INT", Types.ROW_NAMED(["a"], [Types.INT()]), 5, None):
        assert column_names(declared) is None
    assert column_names(Pair) == ("left", "right")
    assert column_names(struct(("a", DateType()))) == ("a",)


@pytest.mark.spark
def test_ddl(spark):
    assert resolve_schema("tail STRING, delay INT NOT NULL, xs ARRAY<STRUCT<a: DATE>>") == struct(
        ("tail", StringType()),
        ("delay", IntegerType(), False),
        ("xs", ArrayType(struct(("a", DateType())))),
    )
    with pytest.raises(ValueError, match="'tail STRINGG' is not a list of columns"):
        resolve_schema("tail STRINGG")
    with pytest.raises(ValueError, match="name the column: 'value INT'"):
        resolve_schema("INT")


@pytest.mark.parametrize(
    ("information", "name", "data_type"),
    [
        (Types.STRING(), "STRING", StringType()),
        (Types.CHAR(), "CHAR", StringType()),
        (Types.BOOLEAN(), "BOOLEAN", BooleanType()),
        (Types.BYTE(), "BYTE", ByteType()),
        (Types.SHORT(), "SHORT", ShortType()),
        (Types.INT(), "INT", IntegerType()),
        (Types.LONG(), "LONG", LongType()),
        (Types.FLOAT(), "FLOAT", FloatType()),
        (Types.DOUBLE(), "DOUBLE", DoubleType()),
        (Types.BIG_INT(), "BIG_INT", DecimalType(38, 0)),
        (Types.BIG_DEC(), "BIG_DEC", DecimalType(38, 18)),
        (Types.SQL_DATE(), "SQL_DATE", DateType()),
        (Types.SQL_TIME(), "SQL_TIME", TimeType()),
        (Types.SQL_TIMESTAMP(), "SQL_TIMESTAMP", TimestampType()),
        (Types.INSTANT(), "INSTANT", TimestampType()),
        (Types.PICKLED_BYTE_ARRAY(), "PICKLED_BYTE_ARRAY", None),
        (Types.BASIC_ARRAY(Types.INT()), "BASIC_ARRAY(INT)", ArrayType(IntegerType())),
        (Types.OBJECT_ARRAY(Types.INT()), "OBJECT_ARRAY(INT)", ArrayType(IntegerType())),
        (Types.PRIMITIVE_ARRAY(Types.INT()), "PRIMITIVE_ARRAY(INT)", ArrayType(IntegerType())),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "PRIMITIVE_ARRAY(BYTE)", BinaryType()),
        (Types.LIST(Types.STRING()), "LIST(STRING)", ArrayType(StringType())),
        (
            Types.MAP(Types.STRING(), Types.LONG()),
            "MAP(STRING, LONG)",
            MapType(StringType(), LongType()),
        ),
        (
            Types.ROW([Types.STRING(), Types.LONG()]),
            "ROW(f0: STRING, f1: LONG)",
            struct(("f0", StringType()), ("f1", LongType())),
        ),
        (
            Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.ROW([Types.INT()])]),
            "ROW(a: STRING, b: ROW(f0: INT))",
            struct(("a", StringType()), ("b", struct(("f0", IntegerType())))),
        ),
        (Types.TUPLE([Types.INT()]), "TUPLE(f0: INT)", struct(("f0", IntegerType()))),
    ],
)
def test_pyflink_types(information, name, data_type):
    assert repr(information) == name
    assert information.data_type == data_type
    if data_type is not None:
        is_row = isinstance(data_type, StructType)
        expected = data_type if is_row else struct(("f0", data_type))
        assert resolve_schema(information) == expected


def test_type_information_is_a_value():
    assert Types.ROW([Types.INT()]) == Types.ROW([Types.INT()])
    assert Types.INT() != Types.LONG()
    assert hash(Types.LIST(Types.INT())) == hash(Types.LIST(Types.INT()))
    with pytest.raises(AttributeError):
        Types.INT().name = "LONG"  # type: ignore[misc]


def test_pickled_objects_are_no_columns():
    pickled = Types.PICKLED_BYTE_ARRAY()
    for information in (
        pickled,
        Types.LIST(pickled),
        Types.MAP(pickled, Types.INT()),
        Types.MAP(Types.INT(), pickled),
        Types.ROW([Types.INT(), pickled]),
        Types.TUPLE([Types.LIST(pickled)]),
    ):
        assert information.data_type is None
        with pytest.raises(ProgramError, match=re.escape(f"{information} cannot be columns")):
            resolve_schema(information)


def test_row_named_wants_a_type_for_each_name():
    with pytest.raises(ValueError, match="2 field names, but 1 field types"):
        Types.ROW_NAMED(["a", "b"], [Types.INT()])


# --- the Arrow schema ---


def test_the_arrow_schema_is_sparks():
    schema = StructType(
        [
            *EVERYTHING.fields,
            StructField("ntz", TimestampNTZType()),
            StructField("small", ArrayType(MapType(ByteType(), ShortType(), False), False)),
            StructField("more", struct(("i", IntegerType()), ("f", FloatType()))),
            StructField("nothing", NullType()),
            StructField("described", LongType(), True, {"comment": "minutes"}),
        ]
    )
    expected = to_arrow_schema(schema, timezone="UTC")
    assert encoder(schema).arrow_schema.equals(expected, check_metadata=True)
    assert encoder(schema).encode([]).schema.equals(expected, check_metadata=True)
    assert encoder(schema).encode([]).num_rows == 0


def test_types_that_cannot_be_encoded():
    schema = struct(("a", struct(("b", ArrayType(spark_types.VariantType())))))
    with pytest.raises(ProgramError, match=r"column a\.b\[\] is declared variant, which cannot be"):
        encoder(schema)


@pytest.mark.parametrize(
    ("data_type", "path"),
    [
        (ArrayType(NullType(), containsNull=False), "a[]"),  # array()
        (MapType(NullType(), NullType()), "a (its keys)"),  # map()
        (ArrayType(struct(("b", NullType(), False))), "a[].b"),
    ],
)
def test_void_that_must_not_be_null_is_refused(data_type, path):
    with pytest.raises(ProgramError, match=re.escape(f"column {path} is VOID and NOT NULL, so it can have no value")):
        encoder(struct(("a", data_type)))


def test_an_encoder_needs_columns_and_a_time_zone():
    with pytest.raises(ValueError, match="declare at least one"):
        encoder(StructType([]))
    with pytest.raises(ConfigurationError, match="'Mars/Olympus' is no time zone"):
        encoder(struct(("a", LongType())), "Mars/Olympus")


def test_an_encoder_can_be_pickled_after_use():
    used = encoder(struct(("a", TimestampType()), ("b", LongType())), "Asia/Tokyo")
    records = [row_class(("b", "a"))((1, datetime(2020, 1, 1, 9)))]
    batch = used.encode(records)
    again = pickle.loads(pickle.dumps(used))
    assert again.encode(records).equals(batch)
    assert batch.column("a").to_pylist() == [datetime(2020, 1, 1, tzinfo=UTC)]


# --- round trips ---

CALM = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)  # no lone surrogates


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-places))


LEAVES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (BooleanType(), st.booleans()),
    (StringType(), CALM),
    (BinaryType(), st.binary(max_size=5)),
    (DateType(), st.dates()),
    (TimestampType(), st.datetimes(timezones=st.just(UTC))),
    (TimestampNTZType(), st.datetimes()),
    (DayTimeIntervalType(), st.timedeltas(timedelta(days=-(10**8)), timedelta(days=10**8))),
    (DecimalType(20, 4), decimals(20, 4)),
    (TimeType(), st.times()),
    (NullType(), st.none()),
    (StructType(), st.just(row_class(())(()))),
]


def grown(
    branch: tuple[DataType, st.SearchStrategy[Any]], key: tuple[DataType, st.SearchStrategy[Any]]
) -> list[tuple[DataType, st.SearchStrategy[Any]]]:
    data_type, values = branch
    nullable = st.none() | values
    both = row_class(("first", "second name"))
    return [
        (ArrayType(data_type), st.lists(nullable, max_size=3)),
        (MapType(key[0], data_type), st.dictionaries(key[1], nullable, max_size=3)),
        (
            struct(("first", data_type), ("second name", LongType())),
            st.builds(lambda *parts: both(parts), nullable, st.none() | st.integers(0, 9)),
        ),
    ]


@st.composite
def columns(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[DataType, list[Any]]:
    branch = draw(st.sampled_from(LEAVES))
    for _ in range(draw(st.integers(0, 3))):
        keys = [leaf for leaf in LEAVES if not isinstance(leaf[0], (FloatType, DoubleType, NullType))]
        branch = draw(st.sampled_from(grown(branch, draw(st.sampled_from(keys)))))
    return branch[0], draw(st.lists(st.none() | branch[1], max_size=6))


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@given(columns())
def test_every_value_comes_back(column):
    data_type, values = column
    assert same(through(data_type, values), values)


def test_the_comparison_of_round_trips_can_fail():
    assert not same([1], [1.0])
    assert not same([(1,)], [Row.of(a=1)])
    assert not same({"a": [None]}, {"a": [1]})
    assert same([Row.of(a=[Decimal("1.0")])], [Row.of(a=[Decimal("1.00")])])


@given(st.lists(st.none() | st.floats()))
def test_nan_is_not_null(values):
    assert repr(through(DoubleType(), values)) == repr(values)


# --- times ---

BERLIN = ZoneInfo("Europe/Berlin")


@given(
    st.lists(
        st.none()
        | st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1))
        | st.datetimes(
            datetime(1800, 1, 1),
            datetime(2200, 1, 1),
            timezones=st.sampled_from([UTC, BERLIN, timezone(timedelta(hours=-9, minutes=-30))]),
        )
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
)
def test_naive_datetimes_are_in_the_sessions_time_zone(values, name):
    zone = ZoneInfo(name)
    expected = [value and (value if value.tzinfo else value.replace(tzinfo=zone)).astimezone(UTC) for value in values]
    assert through(TimestampType(), values, name) == expected
    naive = [value.replace(tzinfo=None) for value in values if value]
    located = [value.replace(tzinfo=zone).astimezone(UTC) for value in naive]
    assert through(TimestampType(), naive, name) == located


def test_hours_that_a_clock_change_repeats_or_skips():
    values = [
        datetime(2020, 10, 25, 2, 30),
        datetime(2020, 10, 25, 2, 30, fold=1),
        datetime(2020, 3, 29, 2, 30),
    ]
    assert [value.hour for value in through(TimestampType(), values, "Europe/Berlin")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "hour"),
    [("UTC", 12), ("Z", 12), ("+01:00", 11), ("-02:30", 14), ("GMT+3", 9), ("UTC-1", 13)],
)
def test_time_zones_as_spark_writes_them(name, hour):
    result = through(TimestampType(), [datetime(2020, 1, 1, 12)], name)[0]
    assert result.hour == hour
    assert result.minute == (30 if name == "-02:30" else 0)


def test_wall_clock_times_ignore_the_session():
    value = datetime(2020, 7, 1, 12)
    assert through(TimestampNTZType(), [value, None], "Asia/Tokyo") == [value, None]


def test_pandas_timestamps():
    value = pd.Timestamp("1969-12-31T23:59:59.999999", tz="UTC")
    assert through(TimestampType(), [value, value, None]) == [
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    ] * 2 + [None]


# --- shapes of records ---


@dataclass
class Flight:
    delay: int
    tail: str


@dataclass
class JustTail:
    tail: str


class FlightTuple(NamedTuple):
    delay: int
    tail: str


class OtherTuple(NamedTuple):
    first: str
    second: int


FLIGHTS = struct(("tail", StringType(), False), ("delay", LongType()))


@pytest.mark.parametrize(
    "record",
    [
        ("N1", 5),
        ["N1", 5],
        Row.of(tail="N1", delay=5),
        Row.of(delay=5, tail="N1"),
        Row("N1", 5),
        FlightTuple(5, "N1"),
        Flight(5, "N1"),
        {"delay": 5, "tail": "N1"},
        OrderedDict(delay=5, tail="N1"),
        SparkRow(delay=5, tail="N1"),
        SparkRow("N1", 5),  # type: ignore[call-overload]
    ],
    ids=repr,
)
@pytest.mark.parametrize("nested", [False, True])
def test_shapes(record, nested):
    rows = [record, ("N2", None), record]
    expected = [("N1", 5), ("N2", None), ("N1", 5)]
    if nested:
        assert through(FLIGHTS, rows) == expected
        assert through(FLIGHTS, [record, None, record]) == [("N1", 5), None, ("N1", 5)]
        assert through(ArrayType(FLIGHTS), [[record], rows]) == [[("N1", 5)], expected]
    else:
        assert rows_from_arrow(encoder(FLIGHTS).encode(rows)) == expected  # mixed
        assert rows_from_arrow(encoder(FLIGHTS).encode([record] * 3)) == [("N1", 5)] * 3


def test_missing_keys_are_null():
    records: list[Any] = [{"tail": "N1"}, {"tail": "N2", "delay": 1}, JustTail("N3")]
    for batch in (records, records[:1], records[:2], records[2:]):
        expected = [("N1", None), ("N2", 1), ("N3", None)]
        start = records.index(batch[0])
        rows = rows_from_arrow(encoder(FLIGHTS).encode(batch))
        assert rows == expected[start : start + len(batch)]


def test_dicts_that_make_missing_values_are_left_alone():
    record: dict[str, Any] = defaultdict(int, tail="N1")
    assert rows_from_arrow(encoder(FLIGHTS).encode([record])) == [("N1", None)]
    assert record == {"tail": "N1"}
    record = defaultdict(int, tail="N1", dealy=5)
    assert "a field 'dealy', which is not declared" in refusal(FLIGHTS, [record])
    assert record == {"tail": "N1", "dealy": 5}


def test_spark_rows_of_different_columns_in_one_batch():
    unnamed = SparkRow("N3", 7)  # type: ignore[call-overload]
    records = [SparkRow(delay=5, tail="N1"), SparkRow(tail="N2", delay=6), unnamed]
    assert rows_from_arrow(encoder(FLIGHTS).encode(records)) == [("N1", 5), ("N2", 6), ("N3", 7)]


@pytest.mark.parametrize(
    ("data_type", "records", "expected"),
    [
        (LongType(), [1, None, (2,), [3], {"value": 4}, Row.of(value=5), Row(6)], range(1, 7)),
        (StringType(), ["a", "bc"], ["a", "bc"]),
        (ArrayType(LongType()), [[1, 2], [], None, ([3],)], [[1, 2], [], None, [3]]),
        (ArrayType(LongType()), [{"value": [1]}, [2]], [[1], [2]]),
        (
            MapType(StringType(), LongType()),
            [{"a": 1}, {"value": 2}, {}, ({"b": 3},), [{"c": 4}]],
            [{"a": 1}, {"value": 2}, {}, {"b": 3}, {"c": 4}],
        ),
        (FLIGHTS, [({"tail": "N1"},), {"value": ("N2", 1)}], [("N1", None), ("N2", 1)]),
        (TimestampNTZType(), [datetime(2020, 1, 1)], [datetime(2020, 1, 1)]),
    ],
    ids=str,
)
def test_one_column_takes_bare_values(data_type, records, expected):
    only = encoder(struct(("value", data_type)))
    rows = [row.value for row in rows_from_arrow(only.encode(records))]
    assert [value for value in rows if value is not None] == [value for value in expected if value is not None]
    for record in records:
        assert rows_from_arrow(only.encode([record]))[0] in [(value,) for value in rows]


def test_kinds_of_values_that_stand_for_others():
    assert through(DoubleType(), [1, 2.5, np.float32(0.5), None]) == [1.0, 2.5, 0.5, None]
    assert through(LongType(), [np.int64(1), 2, np.int8(3)]) == [1, 2, 3]
    assert through(DecimalType(10, 2), [1, Decimal("1.5")]) == [Decimal(1), Decimal("1.5")]
    lists = [(1, 2), np.array([3]), {4}, []]
    assert through(ArrayType(LongType()), lists) == [[1, 2], [3], [4], []]
    assert through(BinaryType(), [bytearray(b"a"), b"b"]) == [b"a", b"b"]
    assert through(MapType(StringType(), LongType()), [OrderedDict(a=1)]) == [{"a": 1}]


# --- what does not fit ---


def test_the_error_says_where_what_and_what_to_do():
    text = misfit(IntegerType(), 1, "late", 2)
    assert text == (
        "operator 'flights': the field 'value' is declared int, but the value 'late' does not fit: "
        "it is of type str; give an int of at most 32 bits, or declare the field otherwise"
        "\n  (record ('late', 'x'))"
    )
    assert issubclass(TypeMismatchError, TypeError)
    assert issubclass(TypeMismatchError, PillarboxError)


def test_values_are_cut_short_in_errors():
    text = misfit(LongType(), "x" * 1000)
    assert f"the value '{'x' * 76}... does not fit" in text
    text = refusal(FLIGHTS, [("x" * 1000,)])
    assert len(text) < 500


@pytest.mark.parametrize(
    ("data_type", "value", "reason"),
    [
        (LongType(), 1.0, "float"),
        (LongType(), Decimal(1), "Decimal"),
        (LongType(), True, "bool"),
        (LongType(), np.float64(1), "float64"),
        (LongType(), "1", "str"),
        (LongType(), math.nan, "float"),
        (LongType(), 2**63, "too large"),
        (ByteType(), 128, "too large"),
        (IntegerType(), -(2**31) - 1, "too large"),
        (DoubleType(), "1", "str"),
        (DoubleType(), 2**53 + 1, "outside of the range"),
        (BooleanType(), 1, "int"),
        (StringType(), 1, "int"),
        (StringType(), b"\xff", "bytes"),
        (StringType(), "\ud800", "surrogates not allowed"),
        (BinaryType(), 1, "int"),
        (DecimalType(5, 2), Decimal("1.234"), "data loss"),
        (DecimalType(5, 2), Decimal("10000"), "precision"),
        (DecimalType(5, 2), 1.5, "float"),
        (DateType(), datetime(2020, 1, 1), "datetime"),
        (DateType(), 5, "int"),
        (DateType(), "2020-01-01", "str"),
        (TimestampType(), 5, "int"),
        (TimestampType(), date(2020, 1, 1), "date"),
        (TimestampType(), "2020-01-01", "str"),
        (TimestampType(), timedelta(1), "timedelta"),
        (TimestampNTZType(), datetime(2020, 1, 1, tzinfo=UTC), "time zone, which would be lost"),
        (TimestampNTZType(), 5, "int"),
        (DayTimeIntervalType(), 5, "int"),
        (TimeType(), 5, "int"),
        (ArrayType(LongType()), 5, "int"),
        (ArrayType(StringType()), "abc", "str"),
        (MapType(StringType(), LongType()), [("a", 1)], "list"),
        (FLIGHTS, "N1", "str"),
        (NullType(), 1, "int"),
    ],
)
def test_values_that_do_not_fit(data_type, value, reason):
    text = misfit(data_type, None, value)
    assert "the field 'value' is declared " in text
    assert reason in text.split("does not fit: ")[1].split(";")[0]
    assert misfit(ArrayType(data_type), [None, value]).startswith("operator 'flights': the field 'value[1]'")


@pytest.mark.parametrize("data_type", [leaf[0] for leaf in LEAVES if not isinstance(leaf[0], NullType)], ids=str)
def test_none_where_none_may_be(data_type):
    text = misfit(data_type, None, nullable=False)
    assert f"is declared {data_type.simpleString()} not null, but the value None" in text
    assert "it must not be null" in text


REQUIRED = struct(("tail", StringType(), False), ("delays", ArrayType(LongType(), False)))


@pytest.mark.parametrize(
    ("data_type", "value", "path", "shown"),
    [
        (ArrayType(LongType(), False), [1, None], "value[1]", "None"),
        (ArrayType(ArrayType(LongType())), [[1], [2, 3, "x"]], "value[1][2]", "'x'"),
        (MapType(StringType(), LongType(), False), {"a": 1, "b": None}, "value['b']", "None"),
        (MapType(StringType(), LongType()), {"a": 1, 7: 2}, "value (a key)", "7"),
        (MapType(StringType(), LongType()), {None: 1}, "value (a key)", "None"),
        (REQUIRED, (None, []), "value.tail", "None"),
        (REQUIRED, {"tail": "N1", "delays": [1, 1.5]}, "value.delays[1]", "1.5"),
        (ArrayType(REQUIRED), [("N1", None), ("N2", [None])], "value[1].delays[0]", "None"),
        (ArrayType(REQUIRED), [("N1", None), ("N2",)], "value[1]", "('N2',)"),
    ],
)
def test_errors_lead_into_nested_values(data_type, value, path, shown):
    text = misfit(data_type, None, value)
    assert text.startswith(f"operator 'flights': the field {path!r} is declared ")
    assert f"but the value {shown} does not fit" in text


RETURNED = " (a tuple that a function such as process_element() returns is a sequence of records: yield tail, delay)"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (("N1",), "it has 1 fields instead of 2"),
        (["N1", 1, 2], "it has 3 fields instead of 2"),
        (Row.of(tail="N1"), "it has 1 fields instead of 2"),
        (Row.of(a="N1", b=5), "it has a field 'a', which is not declared"),
        (Row.of(delay="N1", b=5), "it has a field 'b', which is not declared"),
        (OtherTuple("N1", 5), "it has a field 'first', which is not declared"),
        (SparkRow(a="N1", b=5), "it has a field 'a', which is not declared"),
        ({"tail": "N1", "dealy": 1}, "it has a field 'dealy', which is not declared"),
        ({"delay": 1}, "it has no field 'tail', which must not be null"),
        (Point(1.0, None)._asdict(), "it has a field 'x', which is not declared"),
        (Address("x", 1), "it has a field 'number', which is not declared"),
        (SparkRow("N1"), "it has 1 fields instead of 2"),
        (7, "it is of type int" + RETURNED),
        (None, "it is of type NoneType" + RETURNED),
        (Flight, "it is of type type" + RETURNED),
    ],
    ids=str,
)
def test_records_that_do_not_fit(record, reason):
    fits = ("N0", 0)
    for records in ([record], [record, record], [fits, record], [record, fits]):
        text = refusal(FLIGHTS, records)
        assert text.startswith("operator 'flights': the record ")
        assert text.split("does not fit the declared columns: ")[1] == (
            f"{reason}; give a tuple or dict of (tail, delay), or declare other columns"
        )


def test_the_first_culprit_is_named():
    text = refusal(FLIGHTS, [("N1", 1), ("N2", "a"), ("N3",), (None, 4)])
    assert "the field 'delay' is declared bigint, but the value 'a'" in text
    text = refusal(FLIGHTS, [("N1", 1), (None, 4), ("N2", "a")])
    assert "the field 'tail' is declared string not null, but the value None" in text


def test_an_encoder_works_on_after_an_error():
    flights = encoder(FLIGHTS)
    with pytest.raises(TypeMismatchError):
        flights.encode([("N1", "late")])
    assert flights.encode([("N1", 1)]).to_pylist() == [{"tail": "N1", "delay": 1}]


# --- and Spark itself ---


@pytest.mark.spark
def test_spark_takes_the_batches(spark):
    schema = StructType([f for f in EVERYTHING.fields if not isinstance(f.dataType, TimeType)])
    schema = schema.add("voids", ArrayType(NullType())).add("empty", ArrayType(StructType()))
    record = {
        "an_int": 1,
        "a_float": 0.5,
        "a_str": "é",
        "a_bool": True,
        "a_bytes": b"\xff",
        "a_datetime": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "a_date": date(1969, 12, 31),
        "a_timedelta": timedelta(days=-1, microseconds=1),
        "a_decimal": Decimal("1.5"),
        "a_list": [1, None],
        "a_tuple": ("a", "b"),
        "a_dict": {"home": Address("x", None)},
        "address": Address("y", 7),
        "point": Point(1.0, None),
        "voids": [None],
        "empty": [{}, None],
    }
    encoder = RowEncoder(schema, "flights")
    frame = spark.range(1).mapInArrow(lambda _: iter([encoder.encode([record])]), schema)
    decoded = frame.mapInArrow(
        lambda batches: (
            batch.from_pydict({"text": [repr(row) for row in rows_from_arrow(batch)]}) for batch in batches
        ),
        "text STRING",
    ).collect()
    assert decoded[0].text == repr(rows_from_arrow(encoder.encode([record]))[0])
    assert frame.collect()[0][-2:] == ([None], [(), None])
    assert frame.collect()[0].a_dict["home"].asDict() == {"street": "x", "number": None}
