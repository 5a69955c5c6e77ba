from __future__ import annotations

from decimal import Decimal

import pyspark.sql.types as spark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError

from pillarbox import ProgramError
from pillarbox._operators.stateful_processor.value_codec import ValueCodec, row_maker, struct_codec
from pillarbox._types.readable import check_no_collation
from pillarbox._types.schema import resolve_schema
from tests.operators.stateful_processor.state_values import CASES


def decoded(codec: ValueCodec, stored):
    return stored if codec.decode is None else codec.decode(stored)


@pytest.mark.parametrize(("ddl", "value", "expected"), CASES)
def test_a_value_comes_back_as_from_spark(ddl, value, expected):
    codec = struct_codec(resolve_schema(ddl))
    assert repr(decoded(codec, codec.encode(value))) == expected


@given(st.lists(st.integers()), st.integers(), st.dictionaries(st.text(), st.lists(st.floats(allow_nan=False))))
def test_returned_values_share_nothing_with_stored_values(numbers, number, entries):
    codec = struct_codec(resolve_schema("a ARRAY<LONG>, b LONG, c MAP<STRING, ARRAY<DOUBLE>>"))
    stored = codec.encode((numbers, number, entries))
    first = decoded(codec, stored)
    assert first == (
        [(number + 2**63) % 2**64 - 2**63 for number in numbers], (number + 2**63) % 2**64 - 2**63, entries
    )  # fmt: skip
    first[0].append(1)
    for value in first[2].values():
        value.append(1.0)
    first[2]["more"] = []
    assert decoded(codec, stored) != first
    assert decoded(codec, stored) == decoded(codec, codec.encode(decoded(codec, stored)))


def test_the_key_of_a_map_can_be_hashed_and_comes_back_as_it_was():
    schema = resolve_schema("a ARRAY<INT>, b BINARY, c STRUCT<d: ARRAY<STRING>>")
    codec = struct_codec(schema, hashable=True)
    encode = codec.encode
    stored = encode(([1, 2], bytearray(b"x"), (["y"],)))
    assert {stored: 1}[encode(((1, 2), b"x", {"d": ["y"]}))] == 1
    assert decoded(codec, stored) == ([1, 2], b"x", (["y"],))


@pytest.mark.parametrize(
    ("ddl", "value", "error"),
    [
        ("a int, b int", (1,), "STRUCT_ARRAY_LENGTH_MISMATCH.* 2 fields are required while 1 values are provided"),
        ("a decimal(3,2)", (Decimal(99),), "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("a decimal(3,2)", (Decimal("9.995"),), "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("a decimal(3,2)", (Decimal("1E999"),), "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("a string", ([1],), r"\[1\] \(list\) is not a string"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused(ddl, value, error):
    with pytest.raises(PySparkRuntimeError, match=error):
        struct_codec(resolve_schema(ddl)).encode(value)


@pytest.mark.parametrize("ddl", ["a variant", "a interval year to month", "a array<variant>"])
def test_a_type_that_cannot_be_kept_is_refused_when_it_is_declared(ddl):
    with pytest.raises(ProgramError, match="which pillarbox cannot store"):
        struct_codec(resolve_schema(ddl))


def test_a_row_is_pyspark_s_also_where_columns_have_the_names_of_methods():
    row = row_maker(("a", "count", "__fields__"))((1, 2, 3))
    assert (row.a, row["a"], row["count"], row.count(2)) == (1, 1, 2, 1)
    assert repr(row) == "Row(a=1, count=2, __fields__=3)"
    assert row.asDict() == {"a": 1, "count": 2, "__fields__": 3}


def test_a_key_with_a_collation_is_refused_as_in_key_by() -> None:
    kind = spark.StringType("UTF8_LCASE")
    with pytest.raises(ProgramError) as refused:
        struct_codec(spark.StructType().add("k", spark.StructType().add("name", kind)), hashable=True)
    with pytest.raises(ProgramError, match=r"^key_by\(\): the column 'k' is string collate UTF8_LCASE") as of_column:
        check_no_collation(kind, "key_by(): the column 'k'")
    assert str(refused.value).partition(" is ")[2] == str(of_column.value).partition(" is ")[2]
