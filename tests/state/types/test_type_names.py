"""Names of types. One line fully defines a scalar, and a head's types can be read back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from pillarbox._state.savepoint.column_types import column_type, is_typed
from pillarbox._state.types.plain_types import plain_type
from pillarbox._state.types.type_names import RecordName, parse
from pillarbox._types.scalars import OF_CLASSES, SCALARS, scalar_of_spark

EXAMPLES: dict[type, Any] = {
    str: "a",
    bytes: b"a",
    bool: True,
    int: 5,
    float: 1.5,
    Decimal: Decimal("1.50"),
    dt.date: dt.date(2024, 1, 2),
    dt.datetime: dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc),
    dt.time: dt.time(1, 2, 3, 4),
    dt.timedelta: dt.timedelta(days=-1, microseconds=3),
}


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar(name):
    scalar = SCALARS[name]
    value = EXAMPLES[scalar.classes[0]]
    if name == "TIMESTAMP_NTZ":
        value = value.replace(tzinfo=None)
    of_spark = plain_type(scalar.spark)
    assert of_spark.fits([value, None]) and of_spark.name == ("LONG" if name == "int" else name)
    assert scalar_of_spark(scalar.spark.simpleString()) is SCALARS[of_spark.name]
    for written in (name, f"LIST({name})", f"TUPLE({name}, {name})"):
        values = [value if written == name else [value, None] if written[0] == "L" else (None, value), None]
        column, wrong = column_type(written).split(values)
        assert wrong == [] and column_type(written).decode(column) == values


def test_classes_that_annotations_name():
    assert {class_: plain_type(class_).name for class_ in OF_CLASSES} == {
        cls: scalar.name for cls, scalar in OF_CLASSES.items()
    }
    assert set(EXAMPLES) == set(OF_CLASSES)


class Point(NamedTuple):
    x: int
    y: list[str] = []


@dataclass(frozen=True, slots=True)
class Corner:
    at: Point
    tags: dict[str, float] | None = None


@pytest.mark.parametrize("declared", [Corner, list[Point], tuple[int, Corner], dict[str, tuple[Corner, bytes]]])
def test_written_names_are_read_back(declared):
    written = plain_type(declared).type
    read = parse(written.described)
    assert read == written and read.is_plain and is_typed(written.described)
    for actual, expected in zip(read.every(), written.every(), strict=True):
        assert (actual.optional, actual.record) == (expected.optional, expected.record)


def test_how_a_class_is_pickled():
    corner = plain_type(Corner).type
    assert corner.record == RecordName(__name__, "Corner", "list") and corner.optional == {"tags"}
    assert str(corner) == f"{__name__}.Corner" and not parse(str(corner)).is_plain
    assert plain_type(Point).type.described == f"{__name__}.Point[{__name__}:tuple](x: int, y: LIST(STRING)?)"


@pytest.mark.parametrize(
    "name",
    ["", "LIST()", "MAP(LONG)", "ROW(a, b: LONG)", "ROW(a: LONG, A: LONG)", "LONG(a: LONG)", "m.C(a: LONG)",
     "m.C[m:odd](a: LONG)", "m.C[other:dict](a: LONG)", "m.C[m:dict]()", "LIST(LONG", "ROW()"],
)  # fmt: skip
def test_what_cannot_be_read_without_the_class(name):
    assert not parse(name).is_plain
