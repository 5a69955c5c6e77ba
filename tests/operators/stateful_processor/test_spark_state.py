"""Rows from Spark's ``statestore`` source, as rows of a savepoint's table."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from pillarbox._operators.stateful_processor.handle import HandleDeclarations, StateVariable
from pillarbox._operators.stateful_processor.spark_state import SparkStateTable
from pillarbox._state.savepoint.table import Table
from pillarbox._types.schema import resolve_schema
from pillarbox._unpickle import loads

DAY = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def variable(kind: str, *schemas: str, ttl: int | None = None) -> StateVariable:
    return StateVariable(kind, tuple(map(resolve_schema, schemas)), ttl)


def slots_by_key(key: str, variables: dict[str, StateVariable], columns: dict[str, pa.Array]) -> dict[Any, Any]:
    table = SparkStateTable.of("operator", resolve_schema(key), HandleDeclarations(variables))
    rows = {}
    for batch in table.encode(pa.RecordBatch.from_pydict(columns)):
        for view, _ in Table(table.operator).views(batch, loads):
            names = [name for name, _ in view.layout]
            for owner, row in zip(view.keys, view.rows):
                rows[owner] = {
                    name: loads(value.payload) if hasattr(value, "payload") else value
                    for name, value in zip(names, row[1:])
                    if value is not None
                }
    return rows


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def test_values_lists_and_maps_of_several_key_columns():
    key = pa.struct([("k", pa.string()), ("g", pa.int32())])
    number = pa.struct([("n", pa.int32())])
    nested = pa.struct([("t", pa.timestamp("us", "UTC")), ("inner", pa.struct([("a", pa.list_(pa.string()))]))])
    variables = {
        "value": variable("value", "t TIMESTAMP, inner STRUCT<a: ARRAY<STRING>>"),
        "list": variable("list", "n INT"),
        "map": variable("map", "s STRING", "n INT"),
    }
    columns = {
        "key": array([{"k": "a", "g": 1}, {"k": None, "g": None}], key),
        "state_0": array([{"t": DAY, "inner": {"a": ["x"]}}, None], nested),
        "state_1": array([[{"n": 3}, {"n": None}], None], pa.list_(number)),
        "state_2": array([None, [({"s": "y"}, {"n": 2})]], pa.map_(pa.struct([("s", pa.string())]), number)),
        "timers": array([[5, 3], None], pa.list_(pa.int64())),
    }
    rows = slots_by_key("k STRING, g INT", variables, columns)
    assert rows == {
        ("a", 1): {
            "state/value": (DAY, (["x"],)),
            "state/list": [(3,), (None,)],
            "user-timers/event": {3, 5},
        },
        (None, None): {"state/map": {("y",): (2,)}},
    }
    assert type(rows["a", 1]["state/value"]) is tuple  # as the user gets it


def test_the_time_when_a_value_expires_becomes_the_time_of_its_last_access():
    number = pa.struct([("n", pa.int32())])
    timed = pa.struct([("value", number), ("ttlExpirationMs", pa.int64())])
    variables = {
        "value": variable("value", "n INT", ttl=1000),
        "list": variable("list", "n INT", ttl=2000),
        "map": variable("map", "n INT", "n INT", ttl=3000),
    }

    def stored(n: int, expires: int) -> dict[str, Any]:
        return {"value": {"n": n}, "ttlExpirationMs": expires}

    columns = {
        "key": array([{"k": "a"}, {"k": None}], pa.struct([("k", pa.string())])),
        "state_0": array([stored(1, 9000), None], timed),
        "state_1": array([[stored(2, 9001), stored(3, 9002)], None], pa.list_(timed)),
        "state_2": array([[({"n": 4}, stored(5, 9003))], None], pa.map_(number, timed)),
        "timers": array([[], [7]], pa.list_(pa.int64())),
    }
    assert slots_by_key("k STRING", variables, columns) == {
        "a": {
            "state/value": (1,),
            "ttl/state/value": 8000,
            "state/list": [(2,), (3,)],
            "ttl/state/list": [7001, 7002],
            "state/map": {(4,): (5,)},
            "ttl/state/map": {(4,): 6003},
        },
        None: {"user-timers/event": 7},
    }
