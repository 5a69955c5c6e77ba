from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pillarbox import (
    KeyedProcessFunction,
    KeyTypeError,
    ProgramError,
    Row,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from pillarbox._errors import TypeMismatchError
from pillarbox.testing import harness_for

NOW = dt.datetime(2026, 1, 2, 3, 4, 5)


def collected(elements, type_info=None):
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection(elements, type_info=type_info).execute_and_collect()


class Color(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("type_info", "value", "expected"),
    [
        (Types.STRING(), "a", "a"),
        (Types.FLOAT(), 110.1, 110.0999984741211),
        (Types.FLOAT(), 3, 3.0),
        (Types.DOUBLE(), np.float32(0.5), 0.5),
        (Types.INT(), np.int64(5), 5),
        (Types.BOOLEAN(), np.True_, True),
        (Types.BIG_DEC(), 5, Decimal(5)),
        (Types.SQL_DATE(), NOW.date(), NOW.date()),
        (Types.SQL_TIMESTAMP(), NOW, NOW),
        (Types.LIST(Types.FLOAT()), (1, 0.1), [1.0, 0.10000000149011612]),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"ab", b"ab"),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": np.int8(1)}, {"a": 1}),
        (Types.TUPLE([Types.INT(), Types.STRING()]), [1, "a"], (1, "a")),
        (Types.ROW([Types.INT(), Types.FLOAT()]), (1, 0.1), (1, 0.10000000149011612)),
        (Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.DOUBLE()]), Point(1, 2), (1, 2.0)),
        (Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.DOUBLE()]), {"y": 2, "x": None}, (None, 2.0)),
        (Types.PICKLED_BYTE_ARRAY(), {1}, {1}),
        (Types.STRING(), None, None),
        (Types.STRING(), Color.RED, "red"),
        (Types.STRING(), np.str_("a"), "a"),
        (Types.INT(), Level.LOW, 1),
        (Types.SQL_TIMESTAMP(), pd.Timestamp(NOW), NOW),
        (Types.SQL_DATE(), type("Day", (dt.date,), {})(2026, 1, 2), NOW.date()),
        (Types.SQL_TIME(), type("Time", (dt.time,), {})(3, 4, 5, fold=1), dt.time(3, 4, 5, fold=1)),
    ],
    ids=repr,
)
def test_elements_are_converted(type_info, value, expected):
    (converted,) = collected([value], type_info)
    assert converted == expected and type(converted) in (type(expected), type(converted) if type_info.names else None)
    if isinstance(expected, float):
        assert type(converted) is float


def test_rows_have_names_and_tuples_stay_tuples():
    inner = Types.ROW_NAMED(["card", "pair"], [Types.STRING(), Types.TUPLE([Types.INT(), Types.INT()])])
    (row,) = collected([("c1", (1, 2))], inner)
    assert isinstance(row, Row) and row.card == "c1" and type(row.pair) is tuple
    assert str(collected([(1, "hi")], Types.ROW([Types.INT(), Types.STRING()]))[0]) == "Row(f0=1, f1='hi')"
    assert collected([(1, "hi")]) == [(1, "hi")]


NESTED = Types.ROW_NAMED(["id", "items"], [Types.LONG(), Types.LIST(Types.ROW_NAMED(["price"], [Types.FLOAT()]))])


@pytest.mark.parametrize(
    ("type_info", "value", "says"),
    [
        (
            Types.INT(),
            "1",
            "element 1: '1' does not fit int: it is of type str; give an int of at most 32 bits, or",
        ),
        (
            Types.INT(),
            2**31,
            "element 1: 2147483648 does not fit int: it is too large for 32 bits",
        ),
        (Types.SHORT(), 43878, "43878 does not fit smallint"),
        (Types.LONG(), True, "element 1: True does not fit bigint: it is of type bool"),
        (Types.LONG(), 1.0, "element 1: 1.0 does not fit bigint: it is of type float"),
        (Types.STRING(), 1, "it is of type int; give a str"),
        (Types.FLOAT(), 1e300, "it is too large for 32 bits; give a float"),
        (Types.FLOAT(), "x", "it is of type str; give a float"),
        (Types.BOOLEAN(), 1, "it is of type int; give a bool"),
        (Types.SQL_DATE(), NOW, "it is of type datetime; give a date"),
        (Types.TUPLE([Types.INT()]), (1, 2), "it has 2 fields instead of 1; give a tuple or dict of (f0)"),
        (Types.TUPLE([Types.INT()]), 1, "it is of type int; give a tuple or dict of (f0)"),
        (
            NESTED,
            (1, [("x",)]),
            "element 1: the field 'items[0].price' is declared float, but the value 'x'",
        ),
        (
            NESTED,
            {"id": 1, "item": []},
            "it has a field 'item', which is not declared; give a tuple or dict of",
        ),
        (NESTED, "ab", "it is of type str (a tuple that a function such as process_element() returns is a"),
        (
            Types.MAP(Types.STRING(), Types.INT()),
            {"a": "b"},
            "the field \"['a']\" is declared int, but the value 'b'",
        ),
        (Types.LIST(Types.INT()), "ab", "it is of type str; give a list"),
    ],
    ids=repr,
)
def test_an_element_that_does_not_fit_is_named(type_info, value, says):
    with pytest.raises(TypeMismatchError) as refused:
        collected([None, value], type_info)
    assert says in str(refused.value) and str(refused.value).startswith("from_collection(): element 1")


def test_a_type_is_one_of_types():
    with pytest.raises(ProgramError, match="a type is one of Types"):
        collected([1], int)


def test_the_second_argument_of_key_by_may_be_the_keys_type():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers: Any = env.from_collection([1, 2, 3, 4])
    keyed = numbers.key_by(lambda value: "odd" if value % 2 else "even", Types.STRING())
    assert sorted(keyed.reduce(lambda a, b: a + b).execute_and_collect()) == [1, 2, 4, 6]
    floats = numbers.key_by(lambda value: 0.1 if value % 2 else 0.10000000149011612, Types.FLOAT())
    assert sorted(floats.reduce(lambda a, b: a + b).execute_and_collect()) == [1, 3, 6, 10]
    with pytest.raises(
        (TypeMismatchError, KeyTypeError), match="a key: 1 does not fit string: it is of type int; give a str"
    ):
        numbers.key_by(lambda value: value, key_type=Types.STRING()).reduce(max).execute_and_collect()
    for wrong in (lambda: numbers.key_by(Types.STRING()), lambda: numbers.key_by("a", Types.STRING(), "b")):
        with pytest.raises(ProgramError, match=r"key_by\(\) takes a function or column names"):
            wrong()


def test_a_typed_key_of_an_enum_is_plain_text() -> None:
    class Same(KeyedProcessFunction[str, Any, Any]):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.count.update(self.count.value() + 1)
            yield ctx.get_current_key(), self.count.value()

    with harness_for(Same(), lambda color: color, key_type=Types.STRING()) as harness:
        harness.push_all([Color.RED, "red"])
        harness.snapshot()
        assert harness.get_output() == [("red", 1), ("red", 2)]
        assert type(harness.get_output()[0][0]) is str
