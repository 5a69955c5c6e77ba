"""A declared type accepts the same values wherever it is declared, and refuses others for the same reason."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow

from pillarbox import Row, StreamExecutionEnvironment, Types
from pillarbox._errors import TypeMismatchError
from pillarbox._rows import rows_from_arrow
from pillarbox._types.conversion import value_converter
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import resolve_schema
from pillarbox._types.type_information import TypeInformation

UTC = dt.timezone.utc
SCALARS = [
    Types.STRING(),
    Types.CHAR(),
    Types.BOOLEAN(),
    Types.BYTE(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.BIG_INT(),
    Types.FLOAT(),
    Types.DOUBLE(),
    Types.BIG_DEC(),
    Types.SQL_DATE(),
    Types.SQL_TIME(),
    Types.SQL_TIMESTAMP(),
    Types.INSTANT(),
    Types.PRIMITIVE_ARRAY(Types.BYTE()),
]
# Values that fit some types and not others, at their limits.
LEAVES: list[Any] = [
    *("", "a", "é", "\ud800", b"ab", bytearray(b"ab"), memoryview(b"ab"), np.str_("a"), np.bytes_(b"a")),
    *(True, False, np.True_, 0, 1, -1, 127, 128, -(2**15), 2**15, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**53),
    *(2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**38 - 1, 10**38, np.int8(1), np.int64(2**40), np.uint64(2**63)),
    *(0.5, 0.1, 1e300, -1e300, float("inf"), np.float32(0.1), np.float64(0.1), np.float16(0.5), 1j),
    *(Decimal(1), Decimal("0.1"), Decimal("1E+30"), Decimal("1e-18"), Decimal("1e-19"), Decimal(10) ** 20),
    *(Decimal("NaN"), Decimal("Infinity"), Decimal("1." + "0" * 40)),
    *(dt.date(2020, 1, 1), dt.time(1, 2), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=UTC)),
    *(pd.Timestamp("2020-01-01"), pd.NaT, np.datetime64("2020-01-01"), dt.timedelta(1), object, object()),
]


class Indexed:
    def __index__(self) -> int:
        return 5


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> TypeInformation[Any]:
    kind = draw(st.sampled_from(["scalar", "row", "named", "tuple", "list", "map"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(st.sampled_from(SCALARS))
    if kind == "list":
        return Types.LIST(draw(types(depth - 1)))
    if kind == "map":
        return Types.MAP(draw(st.sampled_from([Types.STRING(), Types.LONG()])), draw(types(depth - 1)))
    parts = draw(st.lists(types(depth - 1), min_size=1, max_size=3))
    if kind == "named":
        return Types.ROW_NAMED(draw(st.permutations(["a", "b", "c"]))[: len(parts)], parts)
    return Types.ROW(parts) if kind == "row" else Types.TUPLE(parts)


def record(kind: str, names: list[str], values: list[Any]) -> Any:
    by_name = dict(zip(names, values))
    if kind in ("tuple", "list"):
        return tuple(values) if kind == "tuple" else values
    if kind == "dict":
        return by_name
    if kind == "ordered":
        return OrderedDict(by_name)
    if kind == "mapping":
        return MappingProxyType(by_name)
    if kind == "dataclass":
        return dataclasses.make_dataclass("Record", list(by_name))(*by_name.values())
    if kind == "named tuple":
        return namedtuple("Record", by_name)(*by_name.values())
    if kind == "row":
        return Row.of(**by_name)
    if kind == "spark":
        return SparkRow(**by_name)
    return Row(*values) if kind == "row of none" else SparkRow(*values)


KINDS = [
    "tuple",
    "list",
    "dict",
    "ordered",
    "mapping",
    "dataclass",
    "named tuple",
    "row",
    "spark",
    "row of none",
    "none",
]


def values_of(declared: TypeInformation[Any]) -> st.SearchStrategy[Any]:
    anything = st.sampled_from(LEAVES) | st.builds(Indexed)
    if declared.names:
        return st.one_of(st.none(), record_of(declared), record_of(declared), anything)
    if declared.parts and not declared.name.startswith("PRIMITIVE"):
        elements = st.lists(values_of(declared.parts[-1]), max_size=3)
        if declared.name.startswith("MAP"):
            keys = st.sampled_from(["x", "y", 1, 2, None, 1.5])
            return st.dictionaries(keys, values_of(declared.parts[1]), max_size=2) | anything
        return elements | elements.map(tuple) | st.sets(st.integers(0, 3)) | st.just(np.array([1, 2])) | anything
    convert = value_converter(declared, "here")
    return st.one_of(st.none(), st.sampled_from([leaf for leaf in LEAVES if takes(convert, leaf)]), anything)


@st.composite
def record_of(draw: st.DrawFn, declared: TypeInformation[Any]) -> Any:
    values = [draw(values_of(part)) for part in declared.parts]
    names = list(declared.names)
    change = draw(st.sampled_from(["", "", "turn", "rename", "drop", "add"]))
    if change == "turn":
        names, values = names[::-1], values[::-1]
    elif change == "rename":
        names[0] = "other"
    elif change == "drop":
        names, values = names[1:], values[1:]
    elif change == "add":
        names, values = [*names, "more"], [*values, 1]
    return record(draw(st.sampled_from(KINDS)), names, values)


def takes(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except TypeMismatchError:
        return False
    return True


def plain(value: Any, declared: TypeInformation[Any]) -> Any:
    if value is None:
        return None
    if declared.names:
        return tuple(plain(part, of) for part, of in zip(value, declared.parts, strict=True))
    if isinstance(value, list):
        return [plain(part, declared.parts[0]) for part in value]
    if isinstance(value, dict):
        return {key: plain(part, declared.parts[1]) for key, part in value.items()}
    if isinstance(value, dt.datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return value


def outcome(run: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "accepted", run()
    except TypeMismatchError as error:
        reason = re.search(r"does not fit(?: the declared columns| \S.*?)?: (.*), or declare", str(error), re.DOTALL)
        assert reason is not None, error
        return "refused", reason[1].rsplit("does not fit: ", 1)[-1]


def places(declared: TypeInformation[Any]) -> dict[str, Callable[[Any], Any]]:
    def column(of: TypeInformation[Any], value: Any) -> Any:
        encoder = RowEncoder(resolve_schema(of), "op", "UTC", bare=not of.names)
        (row,) = rows_from_arrow(encoder.encode([value]))
        return tuple(row) if of.names else row[0]

    row = Types.ROW_NAMED(["x"], [declared])
    typed = {
        "map": (declared, lambda v: v, lambda v: v),
        "list": (Types.LIST(declared), lambda v: [v], lambda v: v[0]),
        "map value": (Types.MAP(Types.STRING(), declared), lambda v: {"k": v}, lambda v: v["k"]),
        "row": (row, lambda v: (v,), lambda v: v[0]),
        "named": (row, lambda v: {"x": v}, lambda v: v[0]),
    }
    results: dict[str, Callable[[Any], Any]] = {}

    def add(name: str, of: Any, put: Any, take: Any) -> None:
        convert = value_converter(of, "op")
        results[name] = lambda v: plain(take(convert(put(v))), declared)
        results[f"column: {name}"] = lambda v: take(column(of, put(v)))
        results[f"both: {name}"] = lambda v: take(column(of, convert(put(v))))

    for name, (of, put, take) in typed.items():
        add(name, of, put, take)

    def collected(value: Any) -> Any:
        (element,) = StreamExecutionEnvironment().from_collection([value], declared).execute_and_collect()
        return plain(element, declared)

    results["from_collection"] = collected
    return results


@given(st.data())
def test_a_type_takes_the_same_values_everywhere(data: st.DataObject) -> None:
    declared = data.draw(types())
    value = data.draw(values_of(declared))
    results = {name: outcome(partial(at, value)) for name, at in places(declared).items()}
    if value is None and declared.names:  # a record is never None
        results = {name: outcome_ for name, outcome_ in results.items() if name not in ("column: map", "both: map")}
    first = next(iter(results.values()))
    for name, outcome_ in results.items():
        assert repr(outcome_) == repr(first) or outcome_ == first, name


class Turned(NamedTuple):
    last: str
    first: str


@dataclasses.dataclass
class Misspelt:
    card: str
    amuont: int


FIRST_LAST = Types.ROW_NAMED(["first", "last"], [Types.STRING(), Types.STRING()])
PAYMENT = Types.ROW_NAMED(["card", "amount"], [Types.STRING(), Types.LONG()])


@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        (FIRST_LAST, Turned("Doe", "Jane"), ("Jane", "Doe")),
        (FIRST_LAST, Row.of(last="Doe", first="Jane"), ("Jane", "Doe")),
        (FIRST_LAST, SparkRow(last="Doe", first="Jane"), ("Jane", "Doe")),
        (FIRST_LAST, Row("Jane", "Doe"), ("Jane", "Doe")),
        (FIRST_LAST, Row.of(last="Doe", other="X"), "it has a field 'other', which is not declared"),
        (FIRST_LAST, Row.of(last="Doe"), "it has 1 fields instead of 2"),
        (PAYMENT, Misspelt("a", 5), "it has a field 'amuont', which is not declared"),
        (PAYMENT, {"card": "a"}, ("a", None)),
        (PAYMENT, {"card": "a", "amount": 5, "x": 1}, "it has a field 'x', which is not declared"),
        (PAYMENT, (5, "a"), "it is of type int; give a str"),
        (Types.ROW([Types.STRING(), Types.STRING()]), Turned("Doe", "Jane"), ("Doe", "Jane")),
        (Types.ROW_NAMED(["x"], [Types.INT()]), 5, "it is of type int; give a tuple or dict of (x)"),
        (Types.INT(), (5,), "it is of type tuple; give an int of at most 32 bits"),
        (Types.MAP(Types.STRING(), Types.INT()), {None: 1}, "it must not be null; give a str"),
    ],
    ids=repr,
)
def test_shapes_of_values(declared: TypeInformation[Any], value: Any, expected: Any) -> None:
    for name, at in places(declared).items():
        result = outcome(partial(at, value))[1]
        assert result == expected if not isinstance(expected, str) else expected in result, name
