from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._elements.buffers import decode, dumps, encode
from pillarbox._elements.elements import Barrier, EndOfData, Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import ExchangeError, OperatorError

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)
NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True)
ROWS = NAMES.flatmap(
    lambda names: st.lists(st.tuples(*[SCALARS] * len(names)).map(lambda values: Row.of(**dict(zip(names, values)))))
)


def with_stamps(values):
    stamps = st.lists(st.none() | INT64, min_size=len(values), max_size=len(values))
    return st.tuples(st.just(values), st.none() | stamps)


@given((st.lists(VALUES) | ROWS).flatmap(with_stamps))
def test_records(run):
    values, stamps = run
    back = decode(encode(Records(values, stamps)))
    assert isinstance(back, Records)
    assert back.values == values
    assert [type(value) for value in back.values] == [type(value) for value in values]
    assert back.timestamps == stamps
    assert len(back) == len(values)


def test_rows_of_several_kinds_in_one_run():
    values = [Row.of(a=1), Row.of(b=2), (3,), Row.of(a=4)]
    back = decode(encode(Records(values)))
    assert isinstance(back, Records)
    assert [getattr(value, "_fields", None) for value in back.values] == [("a",), ("b",), None, ("a",)]


@given(INT64, INT64, st.booleans())
def test_control_elements(first, second, flag):
    counts = dict.fromkeys((field.name for field in dataclasses.fields(TaskReport)), first)
    texts: dict[str, Any] = {"vertex": "map", "uid": "", "counters": {"a.b": second}, "unfinished": flag}
    report = TaskReport(**{**counts, **texts})
    for element in (Watermark(first), WatermarkStatus(flag), Barrier(first), EndOfData(), report):
        assert decode(encode(element)) == element


@given(st.lists(st.tuples(st.none() | INT64, st.none() | st.text(), INT64)), st.booleans())
def test_columns(rows, stamped):
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())],
        names=["n", "s"],
    )
    stamps = np.array([row[2] for row in rows], dtype=np.int64) if stamped else None
    back = decode(encode(ArrowRecords(batch, stamps)))
    assert isinstance(back, ArrowRecords)
    assert back.batch.equals(batch)
    assert np.array_equal(back.stamps, stamps) if stamped else back.stamps is None  # type: ignore[arg-type]
    assert back.values == [row[:2] for row in rows]
    assert back.timestamps == (None if stamps is None else [row[2] for row in rows])


def test_a_slice_is_written_as_a_slice():
    batch = pa.RecordBatch.from_arrays([pa.array(range(100_000))], names=["n"])
    records = ArrowRecords(batch, np.arange(100_000))
    part = encode(records.slice(10, 13))
    assert len(part) < 2_000
    assert decode(part).values == [(10,), (11,), (12,)]  # type: ignore[union-attr]
    assert records.take(np.array([5, 2])).timestamps == [5, 2]


def test_types_that_arrow_knows_better():
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=dt.timezone.utc)
    batch = pa.RecordBatch.from_arrays([pa.array([moment]), pa.array([[1, 2]])], names=["at", "list"])
    assert decode(encode(ArrowRecords(batch))).values == [(moment, [1, 2])]  # type: ignore[union-attr]


def test_local_classes_are_pickled_by_value():
    class Local:
        def __init__(self, x):
            self.x = x

    back = decode(encode(Records([Local(5), lambda: 7])))
    assert isinstance(back, Records)
    assert (back.values[0].x, back.values[1]()) == (5, 7)
    assert pickle.loads(dumps({1: 2})) == {1: 2}


def test_an_unknown_tag():
    with pytest.raises(ExchangeError, match=r"unknown tag b'Z': use the same pillarbox version"):
        decode(b"Zzz")


def test_rows_without_columns_and_stamps_are_read_back():
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    decoded = decode(encode(ArrowRecords(batch, None)))
    assert isinstance(decoded, ArrowRecords) and decoded.stamps is None
    assert (decoded.batch.num_rows, decoded.batch.num_columns) == (3, 0)


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)


def test_values_that_cannot_be_unpickled():
    payload = encode(Records([Refused(1, "no")]))
    with pytest.raises(
        OperatorError, match=r"an emitted value cannot be unpickled: TypeError: .*define __reduce__\(\)"
    ):
        decode(payload)
