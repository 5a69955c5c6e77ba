"""DDL strings that are parsed without a session have the same meaning as in Spark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pillarbox._types.ddl import columns_of

pytestmark = [pytest.mark.spark, pytest.mark.slow("a session")]

TYPES = [
    "BOOLEAN",
    "tinyint",
    "BYTE",
    "SMALLINT",
    "short",
    "INT",
    "Integer",
    "BIGINT",
    "LONG",
    "FLOAT",
    "REAL",
    "DOUBLE",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TIMESTAMP_LTZ",
    "STRING",
    "BINARY",
    "VOID",
    "DECIMAL",
    "DEC(5)",
    "NUMERIC(12,2)",
    "DECIMAL(38,18)",
    "VARCHAR(7)",
    "CHAR(3)",
    "VARIANT",
]
INTERVALS = ["DAY", "DAY TO SECOND", "HOUR TO MINUTE", "YEAR TO MONTH", "MONTH"]
simple = st.sampled_from([*TYPES, *map("INTERVAL {}".format, INTERVALS)])
names = st.sampled_from(["a", "b_1", "Name", "`odd name`", "`a``b`", "`x,y`", "`ÜBER`"])
colons = st.sampled_from([" ", ": ", " : "])
ends = st.sampled_from(["", " NOT NULL", " not null COMMENT 'it\\'s, so'", ' COMMENT "two"'])


def fields(types):
    return st.lists(st.tuples(names, colons, types, ends).map("".join), min_size=1, max_size=3, unique=True).map(
        ", ".join
    )


def nested(types):
    return st.one_of(
        types.map("ARRAY<{}>".format),
        st.tuples(simple, types).map(lambda pair: f"map<{pair[0]}, {pair[1]}>"),
        fields(types).map("STRUCT<{}>".format),
    )


def test_it_is_parsed_as_spark_does(spark: SparkSession) -> None:
    @settings(max_examples=60)
    @given(fields(st.recursive(simple, nested, max_leaves=5)))
    def check(ddl: str) -> None:
        assert columns_of(ddl) == StructType.fromDDL(ddl)

    check()
