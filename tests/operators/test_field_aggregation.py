"""sum, min, max, min_by and max_by, compared with plain Python for every kind of record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import reduce
from itertools import product
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import ProgramError, Row, StreamExecutionEnvironment
from pillarbox._operators.keyed.field_aggregation import FieldAggregation
from pillarbox.testing import ProgramTestHarness, row


class Named(NamedTuple):
    key: str
    amount: int
    note: str


@dataclass(frozen=True)
class Data:
    key: str
    amount: int
    note: str


class Plain:
    def __init__(self, key, amount, note):
        self.key, self.amount, self.note = key, amount, note

    def __eq__(self, other):
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return f"Plain{tuple(vars(self).values())}"


KINDS = {
    "tuple": (lambda *fields: fields, 1, lambda record: record[0], lambda record: record[1]),
    "named tuple": (Named, "amount", lambda record: record.key, lambda record: record.amount),
    "named tuple by position": (Named, 1, lambda record: record.key, lambda record: record.amount),
    "row": (lambda *f: row(key=f[0], amount=f[1], note=f[2]), "amount", lambda r: r.key, lambda r: r.amount),
    "dict": (lambda *f: dict(zip(Data.__annotations__, f)), "amount", lambda r: r["key"], lambda r: r["amount"]),
    "list": (lambda *fields: list(fields), 1, lambda record: record[0], lambda record: record[1]),
    "dataclass": (Data, "amount", lambda record: record.key, lambda record: record.amount),
    "object": (Plain, "amount", lambda record: record.key, lambda record: record.amount),
}
METHODS = ("sum", "min", "max", "min_by", "max_by")
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-5, 5), st.text("xyz", max_size=2)), max_size=12)


@pytest.mark.slow("five programs in one")
@given(st.sampled_from([*KINDS]), RECORDS, st.integers(0, 12))
def test_equal_to_plain_python(kind, fields, cut):
    check(kind, fields, cut)


def test_sums_of_decimals_are_exact():
    whole, wei = Decimal("12345678901234567890123456789012.1"), Decimal("0.000000000000000001")
    with localcontext(Context(prec=3)):
        assert FieldAggregation("sum", 0).reduce(whole, wei) == Decimal(
            "12345678901234567890123456789012.100000000000000001"
        )
        assert FieldAggregation("sum", 0).reduce(Decimal("0.01"), 1000) == Decimal("1000.01")
        assert FieldAggregation("sum", 0).reduce(1000, Decimal("0.01")) == Decimal("1000.01")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_records_is_summed(kind):
    check(kind, [("a", 2, "x"), ("b", 1, "y"), ("a", 2, "z"), ("a", -3, ""), ("b", 5, "x"), ("a", 4, "y")], 3)


def check(kind: str, fields: list[tuple[str, int, str]], cut: int) -> None:
    make, field, key_of, amount_of = KINDS[kind]
    records = [make(*field_) for field_ in fields]

    def build(env, records):
        keyed = records.key_by(key_of)
        return {method: getattr(keyed, method)(field) for method in METHODS}

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("records", *records[:cut])
        first = harness.run_epoch()
        harness.push("records", *records[cut:])
        second = harness.run_epoch()
    assert [make(*field_) for field_ in fields] == records  # as they were
    for method, key in product(METHODS, "ab"):
        own = [record for record in records if key_of(record) == key]
        got = [record for record in first[method] + second[method] if key_of(record) == key]
        assert len(got) == len(own)
        for number, result in enumerate(got, 1):
            seen = own[:number]
            if method.endswith("_by"):
                assert result == _best(method, seen, amount_of)
            else:
                fold: Any = {"sum": sum, "min": min, "max": max}[method]
                assert amount_of(result) == fold(map(amount_of, seen))
                assert type(result) is type(seen[0])
                assert result == make(key, amount_of(result), fields_of(seen[0])[2])


def _best(method, seen, amount_of):
    return (min if method == "min_by" else max)(seen, key=amount_of)  # the first of equals


def fields_of(record):
    if isinstance(record, dict):
        return list(record.values())
    return list(record) if isinstance(record, (tuple, list)) else list(vars(record).values())


def test_a_number_is_its_own_field():
    numbers = StreamExecutionEnvironment().from_collection([3, 8, 5]).key_by(lambda number: "all")
    assert numbers.sum().execute_and_collect() == [3, 11, 16]
    assert numbers.max_by(0).execute_and_collect() == [3, 8, 8]
    texts = StreamExecutionEnvironment().from_collection(["b", "a"]).key_by(len)
    assert texts.min().execute_and_collect() == ["b", "a"]


NUMBERS = (math.nan, -math.inf, -0.0, 0.0, 1.5)


@given(st.lists(st.tuples(st.sampled_from([*NUMBERS, *map(Decimal, NUMBERS)]), st.integers()), min_size=1, max_size=6))
@example([(math.nan, 1), (1.5, 2)])
@example([(1.5, 1), (Decimal("nan"), 2), (1.5, 3)])
def test_nan_is_greater_than_all_numbers(records):
    """This is as in Flink, in Spark and in columnar aggregates."""

    def rank(record):
        return (1, 0) if math.isnan(record[0]) else (0, record[0])

    methods: list[Any] = [("min", min), ("max", max)]
    for method, best in methods:
        expected = best(records, key=rank)
        aggregation = FieldAggregation(cast("Any", f"{method}_by"), 0)
        assert reduce(aggregation.reduce, records) is expected
        assert reduce(FieldAggregation(method, 0).reduce, records) == (expected[0], records[0][1])


@pytest.mark.parametrize("field", [-1, "", 1.5, None, True, ("a",)])
def test_unknown_fields_are_refused(field):
    numbers = StreamExecutionEnvironment().from_collection([3]).key_by(lambda number: "all")
    with pytest.raises(ProgramError, match=r"min_by\(\) takes a field's position \(from 0\) or name, not"):
        numbers.min_by(field)


@pytest.mark.parametrize(
    ("records", "field", "message"),
    [
        ([(1, 2), (1, 3)], 2, r"sum\(2\): the record has 2 fields, counted from 0"),
        ([1, 2], 1, r"sum\(1\): the record has no positions: pass a field's name"),
        ([Row.of(a=1), Row.of(a=2)], "b", "no column 'b'; the columns are a"),
    ],
)
def test_a_field_that_is_not_there_is_named(records, field, message):
    keyed = StreamExecutionEnvironment().from_collection(records).key_by(lambda record: "all")
    with pytest.raises(Exception, match=message) as caught:
        keyed.sum(field).execute_and_collect()
    assert "operator 'sum'" in str(caught.value)
