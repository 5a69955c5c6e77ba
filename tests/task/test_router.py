"""Columnar records are routed to the same subtasks as the same records as Python objects."""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import KeyTypeError, OperatorError
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.keying import Keying, KeyingRouter
from pillarbox._rows import rows_from_arrow
from pillarbox.testing import row

COLUMNS = {
    "text": (st.text(max_size=5) | st.none(), pa.string()),
    "long": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "int": (st.integers(-5, 5) | st.none(), pa.int32()),
    "double": (st.floats(allow_nan=False) | st.none(), pa.float64()),
    "boolean": (st.booleans() | st.none(), pa.bool_()),
    "date": (st.dates() | st.none(), pa.date32()),
    "time": (st.datetimes(timezones=st.just(dt.timezone.utc)) | st.none(), pa.timestamp("us", "UTC")),
    "decimal": (st.integers(-(10**6), 10**6).map(lambda n: Decimal(n).scaleb(-2)), pa.decimal128(10, 2)),
    "binary": (st.binary(max_size=4), pa.binary()),
}


@given(st.data())
def test_several_columns_are_routed_as_tuples(data):
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, max_size=4, unique=True))
    count = data.draw(st.integers(1, 30))
    drawn = {name: data.draw(st.lists(COLUMNS[name][0], min_size=count, max_size=count)) for name in names}
    batch = pa.record_batch({name: pa.array(drawn[name], COLUMNS[name][1]) for name in names})
    for part in (batch, batch.slice(count // 2)):
        router = KeyingRouter(Keying(names, "test"), 7, 128)
        by_column = list(router.subtasks_of(ArrowRecords(part)))
        assert by_column == list(router.subtasks_of(Records(rows_from_arrow(part))))


def test_nan_among_several_columns_is_no_key():
    batch = pa.record_batch({"text": ["a"], "double": [float("nan")]})
    with pytest.raises(KeyTypeError, match="NaN"):
        KeyingRouter(Keying(["text", "double"], "test"), 7, 128).subtasks_of(ArrowRecords(batch))


class Thing:
    def __init__(self, **fields):
        vars(self).update(fields)


KINDS = [row, dict, Thing, lambda **fields: row(other=1, **fields), namedtuple("Pair", ["key", "count"])]


@given(st.lists(st.sampled_from(KINDS), max_size=6), st.sampled_from(["key", "count"]))
def test_a_run_may_have_records_of_several_kinds(kinds, column):
    records = [kind(key=number, count=-number) for number, kind in enumerate(kinds)]
    expected = [number if column == "key" else -number for number in range(len(kinds))]
    assert Keying(column, "test").keys_of(Records(records)) == expected


@pytest.mark.parametrize("records", [[row(key=1), {"other": 1}], [{"key": 1}, Thing(key=2), "text"]])
def test_the_record_without_the_column_is_named(records):
    with pytest.raises(OperatorError, match=r"operator 'test': the key function failed at the record") as caught:
        Keying("key", "test").keys_of(Records(records))
    assert str(records[-1])[:5] in str(caught.value)
