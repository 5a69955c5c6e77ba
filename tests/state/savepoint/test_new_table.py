from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProgramError,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
)
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.key_groups import key_group
from pillarbox._state.savepoint.new_table import EditedTable, NewTable
from pillarbox._state.savepoint.table import Table
from pillarbox.testing import ProgramTestHarness, row

DAY = dt.date(2026, 5, 1)
STATES = [
    ValueStateDescriptor("seen", Types.LONG()),
    ListStateDescriptor("days", Types.SQL_DATE()),
    MapStateDescriptor("by name", Types.STRING(), Types.DOUBLE()),
]
TIMERS = pa.list_(pa.struct([("domain", pa.string()), ("timestamp", pa.int64())]))


def table(**changes: Any) -> NewTable:
    arguments: dict[str, Any] = {
        "uid": "count",
        "keys": {"card": "string"},
        "states": STATES,
        "timers": "due",
        "max_parallelism": 16,
    }
    return NewTable.of(**{**arguments, **changes})


def batch(**changes: Any) -> pa.RecordBatch:
    columns = {
        "card": pa.array(["a", "b"]),
        "seen": pa.array([1, None], pa.int64()),
        "days": pa.array([[DAY], []], pa.list_(pa.date32())),
        "by name": pa.array([[("x", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        "due": pa.array([[event(5), event(7), {"domain": "processing", "timestamp": 9}], None], TIMERS),
        **changes,
    }
    return pa.RecordBatch.from_pydict({name: column for name, column in columns.items() if column is not None})


def event(timestamp: int) -> dict[str, Any]:
    return {"domain": "event", "timestamp": timestamp}


def views(operator: Any, batches: Any) -> list[ViewedRows]:
    return [view for batch in batches for view, _ in Table(operator).views(batch, lambda payload: 1 / 0)]


def test_rows_of_columns_are_rows_of_state():
    new_table = table()
    (view,) = views(new_table.operator, new_table.encode(batch()))
    assert view.keys == ["a", "b"] and view.namespaces is None
    assert [name for name, _ in view.layout] == [
        "state/seen",
        "state/days",
        "state/by name",
        "user-timers/event",
        "user-timers/processing",
    ]
    assert [row[1:] for row in view.rows] == [
        [1, [DAY], {"x": 1.5}, {5, 7}, 9],
        [None, [], None, None, None],
    ]
    assert new_table.operator.types == {
        "state/seen": "LONG",
        "state/days": "LIST(DATE)",
        "state/by name": "MAP(STRING, DOUBLE)",
    }
    assert new_table.operator.key == {"columns": ["card"], "types": ["string"]}


def test_several_columns_are_a_tuple():
    new_table = table(keys={"card": "string", "seen": "bigint"}, states=[], timers=None)
    (view,) = views(new_table.operator, new_table.encode(batch()))
    assert view.keys == [("a", 1), ("b", None)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"card": pa.array(["a", None])}, "operator 'count': the key of a row is null: {'card': None, 'seen': None"),
        ({"seen": pa.array([1.5, 2.5])}, "the state 'seen' of key 'a': 1.5 (float) is not of type LONG"),
        (
            {"due": pa.array([[], [{"domain": "wall", "timestamp": 1}]], TIMERS)},
            "a timer of key 'b' is Row(domain='wall', timestamp=1): domain is 'event' or",
        ),
        (
            {"due": pa.array([[], [{"domain": "event", "timestamp": None}]], TIMERS)},
            "a timer of key 'b' is Row(domain='event', timestamp=None): domain is 'event' or",
        ),
        ({"due": pa.array([[], [None]], TIMERS)}, "a timer of key 'b' is None: domain is 'event' or"),
        ({"card": pa.array([1.0, float("nan")])}, "cannot key by NaN"),
    ],
    ids=["null", "type", "domain", "timestamp", "timer", "nan"],
)
def test_what_is_no_state_is_refused(changes, words):
    with pytest.raises(TypeMismatchError) as caught:
        list(table().encode(batch(**changes)))
    assert words in str(caught.value)


class Money:
    pass


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ValueStateDescriptor("any"), "the value state 'any' has no type that a column can have (no type is declared)"),
        (ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY()), "(PICKLED_BYTE_ARRAY is pickled)"),
        (ListStateDescriptor("sums", Money), "the list state 'sums' has no type that a column can have (Money is"),
    ],
    ids=["none", "pickled", "class"],
)
def test_states_without_a_type_are_refused(state, words):
    with pytest.raises(ProgramError) as caught:
        table(states=[state])
    assert words in str(caught.value)


def test_rows_of_another_savepoint_get_their_key_groups_anew():
    new_table = table()
    (encoded,) = new_table.encode(batch())
    index = encoded.schema.get_field_index("key_group")
    wrong = encoded.set_column(index, "key_group", pa.array([99, 99], pa.int32()))
    (edited,) = EditedTable(new_table.operator).encode(wrong)
    assert edited.equals(encoded)
    # As returned by read_state(): without key groups and the table's own columns.
    fewer = encoded.drop_columns(["key_group", "exact", "namespace"])
    (edited,) = EditedTable(new_table.operator).encode(fewer)
    assert edited.equals(encoded)
    # A null is the key None.
    (edited,) = EditedTable(new_table.operator).encode(fewer.set_column(1, "key", pa.array(["a", None])))
    groups = edited.column("key_group").to_pylist()
    assert groups == [key_group("a", 16), key_group(None, 16)]
    assert [view.keys for view in views(new_table.operator, [edited])] == [["a", None]]
    with pytest.raises(TypeMismatchError, match="operator 'count': cannot key by NaN"):
        numbers = replace(new_table.operator, key_type="DOUBLE")
        edited_batch = fewer.drop_columns(["key"]).append_column("key", pa.array([1.0, float("nan")]))
        list(EditedTable(numbers).encode(edited_batch))


def test_a_null_key_is_not_taken_for_the_operators_own_row():
    operator = replace(table().operator, space_layout=(("state/requests", "value"),))
    (encoded,) = EditedTable(operator).encode(
        pa.RecordBatch.from_pydict({"key": pa.array([None, None], pa.string()), "namespace": ['"operator"', "[1,2]"]})
    )
    assert encoded.column("key_group").to_pylist() == [None, key_group(None, 16)]
    with pytest.raises(TypeMismatchError, match="keep the column 'namespace'"):
        list(EditedTable(operator).encode(pa.RecordBatch.from_pydict({"key": pa.array([None], pa.string())})))


def test_rows_of_no_key_group_are_not_given_to_everyone():
    new_table = table()
    (encoded,) = new_table.encode(batch())
    nulls = encoded.set_column(0, "key_group", pa.array([None, None], pa.int32()))
    with pytest.raises(CheckpointMismatchError, match="a row of a key has no key_group"):
        list(Table(new_table.operator).route(nulls, 2, 16))


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield value.card, self.seen.value()

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} at {timestamp}", self.seen.value()


def counted(env: Any, rows: Any) -> Any:
    return rows.key_by(lambda value: value.card, key_type=Types.STRING()).process(Count()).uid("count")


def test_a_local_savepoint_and_back(tmp_path, caplog):
    with ProgramTestHarness(counted, parallelism=2) as harness:
        with pytest.raises(ProgramError, match="there is no state yet"):
            harness.write_savepoint(tmp_path / "none")
        harness.push_all("rows", [row(card=f"c{number % 5}") for number in range(20)])
        harness.run_epoch()
        harness.write_savepoint(tmp_path / "sp")

    def again(env: Any, rows: Any) -> Any:
        return counted(env.from_savepoint(tmp_path / "sp"), rows)

    for parallelism in (1, 3):
        with ProgramTestHarness(again, parallelism=parallelism) as harness:
            harness.push_all("rows", [row(card=f"c{number}") for number in range(6)])
            assert sorted(harness.run_epoch()["output"]) == [*((f"c{number}", 5) for number in range(5)), ("c5", 1)]
    assert "drained" not in caplog.text
    with ProgramTestHarness(counted, parallelism=2) as harness:
        harness.push("rows", row(card="c1"))
        harness.end_input()
        harness.write_savepoint(tmp_path / "ended")
    with ProgramTestHarness(lambda env, rows: counted(env.from_savepoint(tmp_path / "ended"), rows)) as harness:
        harness.push("rows", row(card="c1"))
        assert harness.run_epoch()["output"] == [("c1", 2)]
    assert "it was drained, which ended event time" in caplog.text
