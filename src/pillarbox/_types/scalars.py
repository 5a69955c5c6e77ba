"""The scalar types of values: one line for each, with all of its names and classes."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import NamedTuple

import pyspark.sql.types as spark

from pillarbox._types.type_information import DECIMAL


class Scalar(NamedTuple):
    """A type whose values have no parts.

    Attributes:
        name: what checkpoints call it.
        spark: Spark's type.
        said: what Spark calls it, without what stands in brackets.
        classes: the classes of its values; values of the first one come back exactly from a column of a savepoint.
        family: keys of one family may be equal, whatever their types; "": it is no type of keys.
        bits: how many an integer has; 0: any number of them, or it is none.
        stored: the Spark type of its column in a savepoint; None: its own.
    """

    name: str
    spark: spark.DataType
    said: tuple[str, ...]
    classes: tuple[type, ...]
    family: str
    bits: int = 0
    stored: spark.DataType | None = None


# Python's floats have 64 bits. A decimal of Arrow's has one number of digits after the point, and Decimal("1.50") is to
# come back as such. Parquet has no type for durations: they are stored as microseconds.
_AS_TEXT, _INTERVAL = spark.StringType(), spark.DayTimeIntervalType()
SCALARS: dict[str, Scalar] = {
    each.name: each
    for each in (
        Scalar("STRING", spark.StringType(), ("string", "char", "varchar"), (str,), "text"),
        Scalar("BINARY", spark.BinaryType(), ("binary",), (bytes, bytearray), "bytes"),
        Scalar("BOOLEAN", spark.BooleanType(), ("boolean",), (bool,), "number"),
        Scalar("BYTE", spark.ByteType(), ("tinyint",), (int,), "number", 8),
        Scalar("SHORT", spark.ShortType(), ("smallint",), (int,), "number", 16),
        Scalar("INT", spark.IntegerType(), ("int",), (int,), "number", 32),
        Scalar("int", spark.LongType(), (), (int, bool), "number"),
        Scalar("LONG", spark.LongType(), ("bigint",), (int,), "number", 64),
        Scalar("FLOAT", spark.FloatType(), ("float",), (float, int), "number", 0, spark.DoubleType()),
        Scalar("DOUBLE", spark.DoubleType(), ("double",), (float, int), "number"),
        Scalar("DECIMAL", DECIMAL, ("decimal",), (Decimal, int), "number", 0, _AS_TEXT),
        Scalar("DATE", spark.DateType(), ("date",), (dt.date,), "date"),
        Scalar("TIMESTAMP", spark.TimestampType(), ("timestamp",), (dt.datetime,), "timestamp"),
        Scalar("TIMESTAMP_NTZ", spark.TimestampNTZType(), ("timestamp_ntz",), (dt.datetime,), "timestamp"),
        Scalar("TIME", spark.TimeType(), ("time",), (dt.time,), "time", 0, _AS_TEXT),
        Scalar("INTERVAL", _INTERVAL, ("interval day to second",), (dt.timedelta,), "", 0, spark.LongType()),
    )
}

#: By the class of Spark's type.
OF_SPARK: dict[type[spark.DataType], Scalar] = {type(each.spark): each for each in SCALARS.values()}

#: By the class that an annotation names.
OF_CLASSES: dict[type, Scalar] = {
    SCALARS[name].classes[0]: SCALARS[name]
    for name in ("STRING", "BINARY", "BOOLEAN", "int", "DOUBLE", "DECIMAL", "DATE", "TIMESTAMP", "TIME", "INTERVAL")
}

#: The classes of all scalar values that can be keys.
CLASSES: frozenset[type] = frozenset(OF_CLASSES)

_SAID = {said: each for each in SCALARS.values() for said in each.said}


def scalar_of_spark(said: str) -> Scalar | None:
    """Return the scalar that Spark calls ``decimal(10,2)``; None: it is none."""
    return _SAID.get(re.split(r"[(<]", said)[0])
