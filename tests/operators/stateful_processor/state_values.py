"""State values to store, and the values that Spark 4.3 returns for them (``tests/spark/stateful_programs`` compares
these).
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row

UTC = dt.timezone.utc
LOCAL = dt.datetime(2020, 7, 1, tzinfo=UTC).astimezone().replace(tzinfo=None)
LONG = "1234567890123456789012345678.0123456789"  # more digits than Python's default precision
#: Schema, value, what ``get`` returns as its ``repr``.
CASES: list[tuple[str, Any, str]] = [
    ("a int", (5,), "(5,)"),
    ("a int", (5.0,), "(None,)"),
    ("a int", (True,), "(None,)"),
    ("a int", (np.int64(7),), "(7,)"),
    ("a int", (2**40 + 3,), "(3,)"),
    ("a int", (2**31,), "(-2147483648,)"),
    ("a int", [5], "(5,)"),
    ("a int", (None,), "(None,)"),
    ("a long", (2**40,), "(1099511627776,)"),
    ("a short", (70000,), "(4464,)"),
    ("a byte", (200,), "(-56,)"),
    ("a double", (1,), "(None,)"),
    ("a double", (1.5,), "(1.5,)"),
    ("a double", (np.float32(2.5),), "(2.5,)"),
    ("a double", (float("nan"),), "(nan,)"),
    ("a float", (99.9,), "(99.9000015258789,)"),
    ("a string", (5,), "('5',)"),
    ("a string", ("x",), "('x',)"),
    ("a string", (True,), "('true',)"),
    ("a string", (1.5,), "('1.5',)"),
    ("a string", "q", "('q',)"),
    ("a boolean", (1,), "(None,)"),
    ("a boolean", (np.bool_(True),), "(True,)"),
    ("a timestamp", (dt.datetime(2020, 7, 1, 1, 2, 3, 456789),), "(datetime.datetime(2020, 7, 1, 1, 2, 3, 456789),)"),
    ("a timestamp", (dt.datetime(2020, 7, 1, tzinfo=UTC),), repr((LOCAL,))),
    ("a timestamp", (pd.Timestamp("2020-07-01 01:02:03"),), "(datetime.datetime(2020, 7, 1, 1, 2, 3),)"),
    ("a timestamp_ntz", (dt.datetime(2020, 7, 1, 1),), "(datetime.datetime(2020, 7, 1, 1, 0),)"),
    ("a date", (dt.date(2020, 7, 1),), "(datetime.date(2020, 7, 1),)"),
    ("a date", (dt.datetime(2020, 7, 1, 5),), "(datetime.date(2020, 7, 1),)"),
    ("a decimal(10,2)", (decimal.Decimal("1.25"),), "(Decimal('1.25'),)"),
    ("a decimal(10,2)", (decimal.Decimal("1.256"),), "(Decimal('1.26'),)"),
    ("a decimal(10,2)", (1,), "(None,)"),
    ("a decimal(38,10)", (decimal.Decimal(LONG),), f"(Decimal('{LONG}'),)"),
    ("a binary", (b"x",), "(b'x',)"),
    ("a binary", (bytearray(b"x"),), "(b'x',)"),
    ("a interval day to second", (dt.timedelta(1, 2, 3),), "(datetime.timedelta(days=1, seconds=2, microseconds=3),)"),
    ("a array<int>", ([1, 2],), "([1, 2],)"),
    ("a array<int>", ((1, 2),), "([1, 2],)"),
    ("a array<double>", ([1, 2.5],), "([None, 2.5],)"),
    ("a map<string,int>", ({"x": 1},), "({'x': 1},)"),
    ("a struct<b:int,c:string>", ((1, "x"),), "(Row(b=1, c='x'),)"),
    ("a struct<b:int,c:string>", ({"b": 1, "c": "x"},), "(Row(b=1, c='x'),)"),
    ("a struct<b:int,c:string>", (Row(c="x", b=1),), "(Row(b=None, c='1'),)"),
    ("a array<struct<x:int>>", ([{"x": 1}],), "([Row(x=1)],)"),
    ("a array<struct<x:int>>", ([Row(x=1)],), "([Row(x=1)],)"),
    ("a array<timestamp>", ([dt.datetime(2020, 7, 1)],), "([datetime.datetime(2020, 7, 1, 0, 0)],)"),
    ("a int, b string", (1, "x"), "(1, 'x')"),
]
