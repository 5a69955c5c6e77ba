"""The columns of ``read_state``: declared types, variants, batches, and several state logs."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import ConfigurationError, ProgramError, Row, TypeMismatchError, Types
from pillarbox._runtime.spark.checkpoint.state import map_logs
from pillarbox._runtime.spark.reading.state_columns import (
    StateColumn,
    StateColumnsEncoder,
    key_type,
    state_columns,
    type_of_name,
)
from pillarbox._runtime.spark.starting.rescale import rescale
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.types.opaque import Opaque, name_of_class
from pillarbox._state.types.plain_types import plain_type


class Point(NamedTuple):
    x: int


@dataclass(frozen=True, slots=True)
class Corner:
    at: Point
    tags: list[str] = field(default_factory=list)


DECLARED: list[tuple[Any, str | None]] = [
    (Types.STRING(), "string"),
    (Types.LONG(), "bigint"),
    (int, "bigint"),
    (float, "double"),
    (Decimal, "decimal(38,18)"),
    (dt.datetime, "timestamp"),
    (dt.timedelta, "interval day to second"),
    (list[int], "array<bigint>"),
    (dict[str, list[float]], "map<string,array<double>>"),
    (tuple[int, str], "struct<f0:bigint,f1:string>"),
    (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.STRING())]), "struct<a:int,b:array<string>>"),
    (
        Types.MAP(Types.STRING(), Types.TUPLE([Types.LONG(), Types.BOOLEAN()])),
        "map<string,struct<f0:bigint,f1:boolean>>",
    ),
    (Point, "struct<x:bigint>"),
    (list[Point], "array<struct<x:bigint>>"),
    (dict[str, Corner], "map<string,struct<at:struct<x:bigint>,tags:array<string>>>"),
]


@pytest.mark.parametrize(("declared", "type_"), DECLARED, ids=str)
def test_the_type_of_a_plain_type(declared, type_):
    result = type_of_name(plain_type(declared).type.described)
    assert (None if result is None else result.simpleString()) == type_


@pytest.mark.parametrize(
    "name", ["", "MAP(LONG)", "LIST()", "ROW(a, b)", "ROW(a: INT, A: INT)", "LIST(LONG", "NOTHING"]
)
def test_a_name_that_is_no_type(name):
    assert type_of_name(name) is None


def head(layout=(), spaces=(), types=None, key=None) -> LogHead:
    return LogHead(
        operator="op",
        parallelism=2,
        max_parallelism=128,
        layouts=[(1, list(layout))],
        version=1,
        key=key,
        space_layouts=[(1, list(spaces))],
        types=types or {},
    )


def test_the_columns_of_states():
    first = head(
        [("state/seen", "value"), ("user-timers/event", "timers"), ("state/Key", "value"), ("state/odd", "value")],
        [("state/seen", "value"), ("late/fired", "value")],
        {"state/seen": "LONG", "space/state/seen": "LONG", "state/Key": "STRING", "state/odd": "LONG"},
    )
    second = head(
        [("state/odd", "value"), ("state/new", "list")], types={"state/odd": "INT", "state/new": "LIST(LONG)"}
    )
    assert state_columns([first, second], ["key", "namespace"]) == [
        StateColumn("seen", ("state/seen",), spark.LongType(), "LONG"),
        StateColumn("state_Key", ("state/Key",), spark.StringType(), "STRING"),
        StateColumn("odd", ("state/odd",), None),  # subtasks that have not run since have values of the other type
        StateColumn("fired", ("late/fired",), None),
        StateColumn("new", ("state/new",), spark.ArrayType(spark.LongType()), "LIST(LONG)"),
    ]


_TYPES = {"bigint": spark.LongType(), "string": spark.StringType()}


@pytest.mark.parametrize(
    ("notes", "type_"),
    [
        ([None], None),
        ([{"function": "f"}], None),
        ([{"columns": ["k"], "types": ["bigint"]}], "bigint"),
        ([{"function": "f", "types": ["string"]}] * 2, "string"),
        ([{"columns": ["k", "l"], "types": ["bigint", "string"]}], "struct<k:bigint,l:string>"),
        ([{"columns": ["k", "K"], "types": ["bigint", "string"]}], "struct<f0:bigint,f1:string>"),
        ([{"function": "f", "types": ["bigint", "string"]}], "struct<f0:bigint,f1:string>"),
        ([{"columns": ["k"], "types": ["bigint"]}, {"columns": ["k"], "types": ["string"]}], None),
        ([{"inputs": [{"columns": ["k"], "types": ["bigint"]}, {"columns": ["l"], "types": ["bigint"]}]}], "bigint"),
        ([{"inputs": [{"columns": ["k"], "types": ["bigint"]}, {"columns": ["l"]}]}], None),
    ],
)
def test_the_type_of_keys(notes, type_):
    result = key_type([head(key=note) for note in notes], _TYPES.__getitem__)
    assert (None if result is None else result.simpleString()) == type_


def rows(keys, layout, values, namespaces=None) -> ViewedRows:
    filled = [[n, *row] for n, row in enumerate(values)]
    return ViewedRows(keys, namespaces, layout, filled, np.ones(len(keys)))


def test_a_batch():
    states = [StateColumn("seen", ("state/seen",), spark.LongType()), StateColumn("other", ("state/other",), None)]
    encoder = StateColumnsEncoder("op", spark.StringType(), states, "UTC")
    assert encoder.variants == ["namespace", "other"]
    layout = [("user-timers/event", "timers"), ("state/seen", "value")]
    batch = encoder.encode(rows(["a", "b", "c"], layout, [(None, 1), (5, None), ({9, 7}, 3)]), 4)
    assert batch.schema == encoder.schema and list(encoder.types) == batch.schema.names
    timer = {"service": "user-timers", "domain": "event"}
    assert batch.to_pydict() == {
        "key": ["a", "b", "c"],
        "namespace": [None] * 3,
        "seen": [1, None, 3],
        "other": [None] * 3,
        "timers": [None, [{**timer, "timestamp": 5}], [{**timer, "timestamp": 7}, {**timer, "timestamp": 9}]],
        "subtask": [4, 4, 4],
    }
    batch = encoder.encode(rows(["a"], [("state/other", "value")], [(1,)], [(0, 10)]), 0)
    assert [batch["namespace"][0].as_py()["json"], batch["other"][0].as_py()["json"]] == ["[0,10]", "1"]
    with pytest.raises(TypeMismatchError, match=r"'op', key 'b': column 'seen' is 2\d+, .* does not fit bigint"):
        encoder.encode(rows(["a", "b"], layout, [(None, 1), (None, 2 * 10**30)]), 0)


def test_objects_of_classes_are_structs_whatever_they_were_written_as():
    name = plain_type(list[Corner]).type.described
    encoder = StateColumnsEncoder(
        "op", spark.LongType(), [StateColumn("at", ("state/at",), type_of_name(name), name)], "UTC"
    )
    corner, former = (name_of_class((module, "Corner")) for module in (__name__, "former"))
    point = Opaque.__new__(name_of_class((__name__, "Point")), 1)
    forms = [Opaque.__new__(corner) for _ in range(3)]
    states: list[Any] = [[point, ["a"]], {"at": point, "tags": ["a"]}, (None, {"at": point, "tags": ["a"]})]
    for form, state in zip(forms, states):
        form.__setstate__(state)
    forms.append(Opaque.__new__(former, point, ["a"]))
    batch = encoder.encode(rows([1, 2], [("state/at", "list")], [(forms,), (None,)]), 0)
    assert batch["at"].to_pylist() == [[{"at": {"x": 1}, "tags": ["a"]}] * 4, None]
    with pytest.raises(TypeMismatchError, match="does not fit array<struct<at:struct<x:bigint>"):
        encoder.encode(rows([1], [("state/at", "list")], [([point],)]), 0)


@given(
    st.lists(
        st.lists(
            st.one_of(st.none(), st.integers(-9, 9), st.sets(st.integers(-9, 9), min_size=2)), min_size=2, max_size=2
        )
    )
)
def test_the_timers_of_a_batch(slots):
    layout = [("user-timers/event", "timers"), ("state/seen", "value"), ("window-timers/processing", "timers")]
    encoder = StateColumnsEncoder("op", spark.LongType(), [], "UTC")
    keys = list(range(len(slots)))
    batch = encoder.encode(rows(keys, layout, [(event, 1, processing) for event, processing in slots]), 0)
    expected = [
        [
            {"service": service, "domain": domain, "timestamp": timestamp}
            for slot, service, domain in ((event, "user-timers", "event"), (processing, "window-timers", "processing"))
            for timestamp in (sorted(slot) if isinstance(slot, set) else [] if slot is None else [slot])
        ]
        or None
        for event, processing in slots
    ]
    assert batch["timers"].to_pylist() == expected


VARIANTS: list[tuple[Any, str | None]] = [
    (1, "1"),
    (-(2**70), "-1180591620717411303424"),
    (10**40, f'"{10**40}"'),
    (True, "true"),
    (1.5, "1.5"),
    (float("nan"), '"nan"'),
    ('tail \N{SNOWMAN} "x"', '"tail \N{SNOWMAN} \\"x\\""'),
    ("\ud800", None),
    (b"bytes", None),
    (object, None),
    ((1, [2, None]), "[1,[2,null]]"),
    ({"b": 1, "a": {2: "x"}}, '{"b":1,"a":{"2":"x"}}'),
    ({(1, 2): 3}, "[[[1,2],3]]"),
    ({3, 1}, "[1,3]"),
    (Row.of(a=1, b=Row.of(c=Decimal("1.50"))), '{"a":1,"b":{"c":"1.50"}}'),
    ([dt.date(2024, 2, 29), dt.timedelta(seconds=90)], '["2024-02-29",90.0]'),
    ([b"x"], None),
]


@pytest.mark.parametrize(("value", "text"), VARIANTS, ids=lambda value: repr(value)[:30])
def test_a_value_of_no_known_type(value, text):
    encoder = StateColumnsEncoder("op", None, [StateColumn("v", ("state/v",), None)], "UTC")
    batch = encoder.encode(rows(["k", "l"], [("state/v", "value")], [(value,), (None,)]), 0)
    result, nothing = batch["v"].to_pylist()
    assert nothing == {"json": None, "pickled": None}
    assert result["json"] == text
    if text is None:
        assert pickle.loads(result["pickled"]) == value
    else:
        assert result["pickled"] is None


def test_logs_one_after_the_other():
    values = [(7, 0, b"a"), (7, 1, b"b"), (8, 0, b"c"), (8, -1, b"d"), (9, 0, b"e")]
    for size in (1, 2, 5):
        parts = [values[at : at + size] for at in range(0, len(values), size)]
        batches = [pa.RecordBatch.from_arrays(list(map(pa.array, zip(*part))), names=["c", "n", "p"]) for part in parts]
        results = list(map_logs(lambda code, store: iter([(code, store.chunks)]), iter(batches)))
        assert results == [(7, {0: b"a", 1: b"b"}), (8, {0: b"c", -1: b"d"}), (9, {0: b"e"})]


@pytest.mark.parametrize(("session", "named"), [("classic", "Spark 4.1.4"), ("connect", "Spark Connect")])
def test_a_spark_that_cannot_rescale_says_so(session, named):
    class Session:
        version = "4.1.4"
        readStream = None

    spark: Any = Session()
    if session == "classic":
        spark._jsparkSession = None
    with pytest.raises(ConfigurationError, match=f"^{named} cannot repartition the state of a checkpoint") as no:
        rescale(spark, "/checkpoint", 4)
    assert "Alternatively, write a savepoint and start from it with env.from_savepoint(...)" in str(no.value)
    for wrong in (0, True, "4", None):
        with pytest.raises(ProgramError, match=r"parallelism must be a positive integer, not"):
            rescale(spark, "/checkpoint", wrong)  # type: ignore[arg-type]
