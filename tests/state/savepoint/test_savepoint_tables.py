"""Savepoints. The logs' content passes through tables into the logs of any number of subtasks."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from types import ModuleType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CheckpointMismatchError,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    StateTtlConfig,
    Types,
    ValueStateDescriptor,
)
from pillarbox._elements.buffers import channel_code
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.inspect.view import LogView
from pillarbox._state.keys.addresses import namespace_address
from pillarbox._state.keys.key_groups import key_group, smallest_key, subtask_of_key
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._state.savepoint import files
from pillarbox._state.savepoint.column_types import column_type
from pillarbox._state.savepoint.files import LocalSavepoint, write_savepoint
from pillarbox._state.savepoint.log_builder import LogBuilder, build_log
from pillarbox._state.savepoint.manifest import Manifest, OperatorTable, Sources, table_folder
from pillarbox._state.savepoint.new_table import EditedTable
from pillarbox._state.savepoint.own_state import OwnState, own_states, redistribute
from pillarbox._state.savepoint.table import Table
from pillarbox._state.types.opaque import AnyNames, Opaque, name_of_class, pickled
from pillarbox._unpickle import loads_allowed
from tests.support.budgets import LONG
from tests.support.savepoints import restore_logs

Logs = dict[int, MemoryChunkStore]
WATERMARK = 5_000
GATE = {
    "valve": {"watermark": WATERMARK, "idle": False, "channels": {("source", 0): (WATERMARK, False, True)}},
    "last_active": {0: 7},
    "last_said": {},
}


def tables_of(logs: Logs, parts: Any = None) -> tuple[Table, list[pa.RecordBatch], list[OwnState]]:
    views = [LogView(store, subtask) for subtask, store in logs.items()]
    table = Table(OperatorTable.of([view.head for view in views], parts))
    manifest = Manifest("0", 1, None, (table.operator,), sources={}, files={})  # type: ignore[arg-type]
    assert OperatorTable.of([view.head for view in views][::-1], parts) == table.operator
    assert json.loads(manifest.to_json())["operators"]
    batches = [batch for view in views for batch in table.encode(view.rows(), view.head.subtask)]
    own = [OwnState() for _ in views]
    for view in views:
        own[view.head.subtask].task = view.task_state()
    for batch in batches:
        for subtask, row in table.own_rows(batch).items():
            own[subtask].row = row
    return table, batches, own


def moved(logs: Logs, parallelism: int, max_parallelism: int) -> Logs:
    table, batches, own = tables_of(logs)
    shares: dict[int, list[pa.RecordBatch]] = {subtask: [] for subtask in range(parallelism)}
    for batch in batches:
        for subtask, share in table.route(batch, parallelism, max_parallelism):
            shares[subtask].append(share)
    new: Logs = {}
    dealt = redistribute("op", own, parallelism)
    for subtask in range(parallelism):
        new[subtask] = MemoryChunkStore()
        identity = LogIdentity("op", subtask, parallelism, max_parallelism)
        builder = LogBuilder(new[subtask], table.operator, identity)
        for rows in table.rows(shares[subtask], KeyOwner(subtask, parallelism, max_parallelism)):
            builder.add(rows)
        builder.finish(dealt[subtask])
    return new


# -- a program with every kind of state --


class Money(NamedTuple):
    amount: Decimal
    currency: str = "EUR"


@dataclass
class Paid:
    money: Money | None
    items: list[tuple[str, int]]


@dataclass(slots=True)
class Slots:
    a: int
    b: dict[str, Money]


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int
    paid: Paid | None = None


MONEY = st.builds(Money, st.decimals(allow_nan=False, max_value=10**9, min_value=0), st.text("EUR", max_size=3))
PAID = st.builds(Paid, st.none() | MONEY, st.lists(st.tuples(st.text("ab", max_size=2), st.integers()), max_size=2))
LONGS = st.integers(-(2**63), 2**63 - 1)
TYPED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "LONG": (Types.LONG(), LONGS),
    "DOUBLE": (Types.DOUBLE(), st.floats(allow_nan=False) | st.integers(-5, 5)),
    "FLOAT": (Types.FLOAT(), st.floats(allow_nan=False)),
    "STRING": (Types.STRING(), st.text(st.characters(), max_size=4)),
    "int": (int, st.integers() | st.booleans()),
    "DECIMAL": (Types.BIG_DEC(), st.decimals(allow_nan=False, max_value=10**9, min_value=-(10**9)) | st.just(4)),
    "INSTANT": (
        Types.INSTANT(),
        st.datetimes(
            timezones=st.sampled_from([dt.timezone.utc, ZoneInfo("Europe/Rome"), dt.timezone(dt.timedelta(0))])
        ),
    ),
    "LISTS": (list[int | None], st.lists(st.none() | LONGS, max_size=3) | st.tuples(LONGS) | st.frozensets(LONGS)),
    "MAP": (dict[str, float], st.dictionaries(st.text("ab", max_size=2), st.floats(allow_nan=False), max_size=2)),
    "ROW": (
        Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.STRING())]),
        st.builds(lambda a, b: Row.of(a=a, b=b), st.none() | LONGS, st.none() | st.lists(st.text("xy"), max_size=2))
        | st.just((1, ["t"]))
        | st.just(Row.of(b=[], a=1)),
    ),
    "TUPLE": (tuple[str, int], st.tuples(st.text("ab"), LONGS)),
    "INTERVAL": (dt.timedelta, st.timedeltas()),
    "TIME": (dt.time, st.times()),
    "DATE": (dt.date, st.dates()),
    "NAMED_TUPLE": (Money, MONEY),
    "DATACLASS": (Paid, PAID),
    "SLOTS": (Slots, st.builds(Slots, LONGS, st.dictionaries(st.text("ab", max_size=1), MONEY, max_size=2))),
    "FROZEN_SLOTS": (list[FrozenSlots], st.lists(st.builds(FrozenSlots, LONGS, st.none() | PAID), max_size=2)),
    "BINARY": (bytes, st.binary(max_size=3) | st.binary(max_size=3).map(bytearray)),
}
SCALARS = st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.dates()
ANYTHING: st.SearchStrategy[Any] = (
    SCALARS | st.lists(st.none() | SCALARS, max_size=2) | st.tuples(SCALARS) | st.sets(st.integers(), max_size=2)
)
KEYS: dict[str, tuple[KeyNote | None, st.SearchStrategy[Any]]] = {
    "bigint": (KeyNote(columns=["k"], types=["bigint"]), LONGS | st.booleans()),
    "string": (KeyNote(columns=["k"], types=["string"]), st.none() | st.text(max_size=3)),
    "two": (
        KeyNote(columns=["k", "l"], types=["string", "timestamp"]),
        st.tuples(st.text("ab"), st.none() | st.datetimes(timezones=st.just(dt.timezone.utc))),
    ),
    "none": (
        None,
        st.none() | st.integers() | st.text(max_size=2) | st.tuples(st.integers(), st.binary(max_size=1)) | st.dates(),
    ),
}
NAMESPACES = st.sampled_from([0, -(2**70), (0, 5), "window", ((1, "\ud800"), 2)])
CHANGES = st.tuples(
    st.sampled_from(
        ["value", "list", "map", "timed", "event", "processing", "space value", "space list", "space event"]
    ),
    st.integers(0, 5),
    NAMESPACES,
    st.integers(0, 8),
    st.integers(1, 30),
)


class Program:
    def __init__(self, owner: KeyOwner, note: KeyNote | None, declared: Any, store: MemoryChunkStore) -> None:
        self.backend = KeyedStateBackend("op", owner)
        get = self.backend.get_state
        timed = ValueStateDescriptor("timed", declared)
        timed.enable_time_to_live(StateTtlConfig("1 hour"))
        of_keys = None if declared is None else Types.LONG()
        self.value = get(ValueStateDescriptor("value", declared))
        self.list = get(ListStateDescriptor("list", declared))
        self.map = get(MapStateDescriptor("map", of_keys, declared))
        self.timed = get(timed)
        self.space_value = get(ValueStateDescriptor("value", declared), namespaced=True)
        self.space_list = get(ListStateDescriptor("namespace", declared), namespaced=True)
        self.event = self.backend.create_timers("user-timers/event")
        self.processing = self.backend.create_timers("user-timers/processing")
        self.space_event = self.backend.create_timers("windows/event", namespaced=True)
        self.backend.seal()
        self.backend.now = 1_000
        identity = LogIdentity("op", *owner, key=note)
        self.log = StateLog(identity, self.backend, own_state=False)
        assert (self.log.reason_for_pickles is None) == (declared is not None and note is not None)
        self.sync = self.log.sync(store)

    def change(self, what: str, key: Any, namespace: Any, values: list[Any], at: int) -> None:
        spaced = what.startswith("space")
        self.backend.namespaces.enter(namespace_address(key, namespace)) if spaced else self.backend.set_current_key(
            key
        )
        if what == "value":
            self.value.update(values[0])
        elif what == "list":
            self.list.update(values)
        elif what == "map":
            self.map.put_all(dict(enumerate(values, at)))
        elif what == "timed":
            self.timed.update(values[0])
        elif what == "space value":
            self.space_value.update(values[0])
        elif what == "space list":
            self.space_list.update(values)
        elif what == "space event":
            self.space_event.register(at, namespace)
        else:
            (self.event if what == "event" else self.processing).register(at)

    def content(self) -> dict[str, Any]:
        backend = self.backend
        results: dict[str, Any] = {}
        for key, row in backend.rows.items():
            results[shown(key)] = shown({s.name: v for s, v in zip(backend.slots, row[2:]) if v is not None})
        for row in backend.namespaces.every_row():
            held = {slot.name: value for slot, value in zip(backend.namespaces.slots, row[2:]) if value is not None}
            results[shown(row[1][:2])] = shown(held)
        return results


def shown(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {sorted(map(shown, value))}"
    if isinstance(value, dict):
        inner = ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        inner = f"{getattr(value, '_fields', '')} " + ", ".join(map(shown, value))
    else:
        inner = repr(value)
    return f"{type(value).__name__} {inner}"


def state_of(logs: Logs, note: KeyNote | None, declared: Any) -> tuple[dict[str, Any], list[Any]]:
    results: dict[str, Any] = {}
    tasks = []
    for subtask, store in logs.items():
        head = LogView(store, subtask).head
        owner = KeyOwner(subtask, head.parallelism, head.max_parallelism)
        program = Program(owner, note, declared, store)
        assert program.sync is Sync.LOADED
        content = program.content()
        assert not results.keys() & content.keys()
        results.update(content)
        tasks.append(program.log.task_state)
        # It continues from there.
        again = store.copy()
        program.change("event", first_key(owner), None, [], 0)
        program.log.commit(again, {})
        assert Program(owner, note, declared, again).sync is Sync.LOADED
    return results, tasks


def first_key(owner: KeyOwner) -> int:
    return smallest_key(owner.subtask, owner.max_parallelism, owner.parallelism)


def written(parallelism: int, groups: int, note: KeyNote | None, declared: Any, changes: list[Any]) -> Logs:
    logs: Logs = {subtask: MemoryChunkStore() for subtask in range(parallelism)}
    programs = [Program(KeyOwner(n, parallelism, groups), note, declared, logs[n]) for n in range(parallelism)]
    for start in range(0, max(1, len(changes)), 4):
        for what, key, *more in changes[start : start + 4]:
            programs[subtask_of_key(key, groups, parallelism)].change(what, key, *more)
        for subtask, program in enumerate(programs):
            program.log.commit(logs[subtask], {"gate": GATE})
    return logs


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 200)
    monkeypatch.setattr(limits, "SPARE_CHUNKS", 3)
    monkeypatch.setattr(large_collections, "_LARGE", 35)


@pytest.mark.slow("a model")
@pytest.mark.usefixtures("small")
@given(st.data())
def test_any_state_for_any_number_of_subtasks(data):
    note, keys = data.draw(st.sampled_from([*KEYS.values()]))
    declared, values = data.draw(st.sampled_from([*TYPED.values()]))
    if note is None:
        declared, values = None, ANYTHING
    pool = data.draw(st.lists(keys, min_size=1, max_size=6))
    contents = data.draw(st.lists(values, min_size=9, max_size=9))
    changes = [
        (what, pool[key % len(pool)], namespace, contents[value : value + 1 + at % 9], at)
        for what, key, namespace, value, at in data.draw(st.lists(CHANGES, max_size=12))
    ]
    logs = written(3, 16, note, declared, changes)
    before, tasks = state_of(logs, note, declared)
    other = moved(logs, data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([16, 16, 7, 128])))
    assert state_of(other, note, declared)[0] == before
    back, tasks_again = state_of(moved(other, 3, 16), note, declared)
    assert (back, [task["gate"] for task in tasks_again]) == (before, [task["gate"] for task in tasks])
    for subtask, store in logs.items():
        assert Program(KeyOwner(subtask, 3, 16), note, declared, store).content() == (
            Program(KeyOwner(subtask, 3, 16), note, declared, moved(other, 3, 16)[subtask]).content()
        )


@pytest.mark.parametrize("name", TYPED)
def test_values_of_a_column(name):
    declared = TYPED[name][0]
    note = KeyNote(columns=["k"], types=["bigint"])
    typical: Any = {
        "LONG": 7, "DOUBLE": 1.5, "FLOAT": 0.1, "STRING": "text", "int": 7, "DECIMAL": Decimal("1.50"),
        "INSTANT": dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc), "LISTS": [1, None], "MAP": {"a": 1.5},
        "ROW": Row.of(a=1, b=["x"]), "TUPLE": ("a", 1), "INTERVAL": dt.timedelta(seconds=1.5),
        "TIME": dt.time(1, 2, 3, 4), "DATE": dt.date(2024, 2, 29), "BINARY": b"\x00",
        "NAMED_TUPLE": Money(Decimal("1.50")), "DATACLASS": Paid(Money(Decimal("1.50")), [("a", 1)]),
        "SLOTS": Slots(1, {"x": Money(Decimal(2))}), "FROZEN_SLOTS": [FrozenSlots(1), FrozenSlots(2, Paid(None, []))],
    }[name]  # fmt: skip
    logs = written(1, 8, note, declared, [("value", 3, None, [typical], 0), ("event", 4, None, [], 9)])
    table, (batch,), _ = tables_of(logs)
    assert batch.column("exact").null_count == 2
    rows = {row["key"]: row for row in batch.to_pylist()}
    shown_as = {"DECIMAL": "1.50", "TIME": "01:02:03.000004", "INTERVAL": 1_500_000, "MAP": [("a", 1.5)]}
    shown_as |= {"ROW": {"a": 1, "b": ["x"]}, "TUPLE": {"f0": "a", "f1": 1}}
    money = {"amount": "1.50", "currency": "EUR"}
    shown_as |= {"NAMED_TUPLE": money, "DATACLASS": {"money": money, "items": [{"f0": "a", "f1": 1}]}}
    shown_as |= {"SLOTS": {"a": 1, "b": [("x", {"amount": "2", "currency": "EUR"})]}}
    shown_as |= {"FROZEN_SLOTS": [{"a": 1, "paid": None}, {"a": 2, "paid": {"money": None, "items": []}}]}
    assert rows[3]["value"] == shown_as.get(name, typical)
    assert rows[4]["timers"] == [{"service": "user-timers", "domain": "event", "timestamp": 9}]
    assert rows[3]["key_group"] == key_group(3, 8)
    assert [field.name for field in table.schema] == [
        *("key_group", "subtask", "key", "namespace", "value", "list", "map", "timed", "timed_last_access"),
        *("state_value", "state_namespace", "timers", "exact"),
    ]


def test_a_struct_that_was_changed_is_an_object_of_its_class():
    note = KeyNote(columns=["k"], types=["bigint"])
    paid = [Paid(Money(Decimal(number)), []) for number in range(3)]
    logs = written(1, 8, note, Paid, [("value", key, None, [value], 0) for key, value in enumerate(paid)])
    table, (batch,), _ = tables_of(logs)
    rows = batch.to_pylist()
    rows[1]["value"]["money"]["currency"] = "CHF"
    changed = pa.RecordBatch.from_pylist([{"key": row["key"], "value": row["value"]} for row in rows])
    (edited,) = EditedTable(table.operator).encode(
        changed.set_column(1, "value", changed.column("value").cast(table.schema.field("value").type))
    )
    store = MemoryChunkStore()
    build_log(store, table, LogIdentity("op", 0, 1, 8), [edited], OwnState())
    result = Program(KeyOwner(0, 1, 8), note, Paid, store)
    assert result.sync is Sync.LOADED
    paid[1] = Paid(Money(Decimal(1), "CHF"), [])
    for key, value in enumerate(paid):
        result.backend.set_current_key(key)
        assert result.value.value() == value


def test_an_object_that_is_not_as_its_class_says_is_beside_its_column():
    kind = column_type("shop.Card[shop:dict](n: LONG, of: shop.Owner[shop:tuple](name: STRING)?)")
    card, owner = (name_of_class(("shop", name)) for name in ("Card", "Owner"))

    def obj(state: Any, of: Any = card) -> Any:
        value = Opaque.__new__(of)
        value.__setstate__(state)
        return value

    fits = obj({"n": 1, "of": Opaque.__new__(owner, "x")}), obj({"of": None, "n": None})
    others = [
        obj({"n": 1}), obj({"n": 1, "of": None, "more": 1}), obj((None, {"n": 1, "of": None})), obj([1, None]),
        obj({"n": 1, "of": None}, owner), obj({"n": 1, "of": Opaque.__new__(owner)}), obj({"n": "1", "of": None}),
        (1, None), {"n": 1, "of": None},
    ]  # fmt: skip
    column, wrong = kind.split([*fits, None, *others])
    assert wrong == [*range(3, 3 + len(others))]
    assert column.to_pylist()[:3] == [{"n": 1, "of": {"name": "x"}}, {"n": None, "of": None}, None]
    assert list(map(pickled, kind.decode(column)[:2])) == [pickled(fits[0]), pickled(obj({"n": None, "of": None}))]


def unread(payload: bytes) -> Any:
    return loads_allowed(payload, AnyNames())


class Point(NamedTuple):
    x: int


def test_classes_that_are_not_at_hand(monkeypatch):
    gone = ModuleType("tests_gone_too")
    gone.Point = Point  # type: ignore[attr-defined]
    monkeypatch.setattr(Point, "__module__", "tests_gone_too")
    monkeypatch.setitem(sys.modules, "tests_gone_too", gone)
    changes = [("value", Point(n), None, [Point(n), n], 0) for n in range(9)]
    logs = written(3, 16, None, None, changes)
    before, _ = state_of(logs, None, None)
    monkeypatch.delitem(sys.modules, "tests_gone_too")
    table, batches, _ = tables_of(logs)
    assert {group for batch in batches for group in batch.column("key_group").to_pylist()} == {-1}
    # Nor does writing the logs, if no key has to be hashed.
    views = [LogView(store, 0) for store in logs.values()]
    new: Logs = {}
    for subtask, view in enumerate(views):
        rows = table.encode(view.rows(), subtask)
        new[subtask] = MemoryChunkStore()
        build_log(new[subtask], table, LogIdentity("op", subtask, 3, 16), rows, OwnState(), unread)
    monkeypatch.setitem(sys.modules, "tests_gone_too", gone)
    assert state_of(new, None, None)[0] == before
    results = {n: share.num_rows for batch in batches for n, share in table.route(batch, 1, 16)}
    assert results
    assert state_of(moved(logs, 5, 16), None, None)[0] == before


# -- state of operators --


def with_own_rows(parallelism: int) -> Logs:
    logs: Logs = {}
    for subtask in range(parallelism):
        logs[subtask] = MemoryChunkStore()
        backend, log = own_backend(subtask, parallelism, logs[subtask])
        shared, union, rules = (backend.states[name] for name in ("list", "union", "rules"))
        for n in range(subtask + 2):
            shared.add((subtask, n))
            union.add(10 * subtask + n)
        rules.put("rule", [1])
        backend.set_current_key(first_key(KeyOwner(subtask, parallelism, 16)))
        backend.states["value"].update("keyed")
        log.commit(logs[subtask], {"gate": GATE, "operators": {"ask": requests(subtask)}})
    return logs


def own_backend(subtask: int, parallelism: int, store: MemoryChunkStore) -> tuple[Any, StateLog]:
    backend: Any = KeyedStateBackend("op", KeyOwner(subtask, parallelism, 16))
    backend.states = {
        "value": backend.get_state(ValueStateDescriptor("value")),
        "list": backend.get_operator_list(ListStateDescriptor("held"), "a/b", union=False),
        "union": backend.get_operator_list(ListStateDescriptor("held"), "a/b", union=True),
        "rules": backend.get_operator_state(MapStateDescriptor("rules")),
    }
    backend.seal()
    log = StateLog(LogIdentity("op", subtask, parallelism, 16), backend)
    log.sync(store)
    return backend, log


def requests(subtask: int) -> list[Any]:
    results: list[Any] = []
    for n in range(3):
        results += [("request", [(subtask, n)], None, 100 * subtask + n, None), ("watermark", 1_000 * n + subtask)]
    return results


def test_state_of_operators():
    logs = moved(with_own_rows(3), 2, 16)
    values: list[Any] = []
    dealt: list[Any] = []
    for subtask, store in logs.items():
        backend, log = own_backend(subtask, 2, store)
        states = backend.states
        values += list(states["list"].get())
        assert sorted(states["union"].get()) == [0, 1, 10, 11, 12, 20, 21, 22, 23]
        assert dict(states["rules"].items()) == {"rule": [1]}
        operators = log.task_state["operators"]["ask"]
        dealt += [content[1][0] for content in operators[:-1]]
        # Only the watermark that all subtasks had after their requests.
        assert operators[-1] == ("watermark", 2_000)
        assert all(what == "request" for what, *_ in operators[:-1])
    assert values == [(subtask, n) for subtask in range(3) for n in range(subtask + 2)]
    assert dealt == [(subtask, n) for subtask in range(3) for n in range(3)]
    # With the same number of subtasks, each keeps its own.
    for subtask, store in moved(with_own_rows(3), 3, 16).items():
        backend, log = own_backend(subtask, 3, store)
        assert list(backend.states["list"].get()) == [(subtask, n) for n in range(subtask + 2)]
        assert log.task_state["operators"] == {"ask": requests(subtask)}


def gate(watermark: int, channels: dict[Any, Any]) -> OwnState:
    valve = {"watermark": watermark, "idle": False, "channels": channels}
    return OwnState({"gate": {"valve": valve, "last_active": {1: watermark}, "last_said": {1: watermark}}})


def test_the_least_watermark():
    first, second, new = ([channel_code(edge, subtask) for subtask in range(4)] for edge in (1, 2, 8))
    states = [
        gate(10, {first[0]: (10, False, True), second[0]: (30, True, False), second[1]: (20, True, False)}),
        gate(7, {first[0]: (7, False, True), second[0]: (9, False, True), second[1]: (20, True, False)}),
    ]
    for own in redistribute("op", states, 3, channels=[first[:1], second[:2], new]):
        merged = own.task["gate"]
        assert merged["valve"]["watermark"] == 7
        same = {first[0]: (7, False, True), second[0]: (9, False, True), second[1]: (20, True, False)}
        assert merged["valve"]["channels"] == same
        assert (merged["last_active"], merged["last_said"]) == ({1: 10}, {1: 7})
    # With more subtasks before it, or fewer, all begin alike: behind the slowest, and idle only if all were.
    for number in (1, 3):
        for own in redistribute("op", states, 3, channels=[first[:1], second[:number], new]):
            channels = own.task["gate"]["valve"]["channels"]
            assert channels == {first[0]: (7, False, True), **dict.fromkeys(second[:number], (9, False, True))}


def test_subtasks_that_keep_their_keys_keep_their_watermarks():
    first, second = ([channel_code(edge, subtask) for subtask in range(4)] for edge in (1, 2))
    states = [
        gate(10, {first[0]: (10, False, True), second[0]: (30, True, False), second[1]: (20, True, False)}),
        gate(7, {first[0]: (7, False, True), second[0]: (9, False, True), second[1]: (20, True, False)}),
        OwnState(),
    ]
    stay = redistribute("op", states, 3, channels=[first[:1], second[:2]], keys_stay=True)
    assert [own.task["gate"] for own in stay[:2]] == [state.task["gate"] for state in states[:2]]
    assert stay[2].task["gate"]["valve"]["watermark"] == 7
    # The channels of additional senders start like this subtask's.
    more = redistribute("op", states, 3, channels=[first[:1], second[:3]], keys_stay=True)
    assert [own.task["gate"]["valve"]["channels"][second[2]][0] for own in more] == [20, 9, 9]


def test_event_time_of_redistributed_state():
    def own_state(watermark: int, idle: bool, since: int | None) -> OwnState:
        valve = {"watermark": watermark, "idle": idle, "channels": {("a", None, 0): (watermark, idle, not idle)}}
        times = {"watermark": watermark, "idle": idle, "quiet_since": since, "silent": idle}
        operators = {"times": times, "clock": {"watermark": watermark}} if watermark else {"times": times}
        return OwnState({"event_time": {"operators": operators, "meetings": {("union",): valve}}})

    states = [own_state(10, True, 500), own_state(0, False, 800), own_state(30, False, None)]
    assert [own.task["event_time"] for own in redistribute("op", states, 3)] == [
        state.task["event_time"] for state in states
    ]
    for own in redistribute("op", states, 2):
        result = own.task["event_time"]
        # Idle streams are announced again. The clock of a function that one of them has not set is unknown.
        assert result["operators"] == {"times": {"watermark": 0, "idle": None, "quiet_since": 800, "silent": False}}
        channel = {("a", None, 0): (0, False, True)}
        assert result["meetings"] == {("union",): {"watermark": 0, "idle": False, "channels": channel}}


def test_state_that_cannot_be_redistributed():
    with pytest.raises(CheckpointMismatchError, match=r"'op': 'x' keeps something that cannot be dealt out to another"):
        redistribute("op", [OwnState({"operators": {"x": {1: 2}}}), OwnState()], 3)


# -- refusals --


def test_a_savepoint_that_is_not_as_it_was():
    note = KeyNote(columns=["k"], types=["bigint"])
    logs = written(1, 8, note, Types.LONG(), [("value", n, None, [n], 0) for n in range(6)])
    table, (batch,), _ = tables_of(logs)
    owner = KeyOwner(0, 2, 8)

    def build(batches: list[Any]) -> None:
        builder = LogBuilder(MemoryChunkStore(), table.operator, LogIdentity("op", *owner))
        for rows in table.rows(batches, owner):
            builder.add(rows)
        builder.finish(OwnState())

    with pytest.raises(CheckpointMismatchError, match=r"key_group is wrong"):
        build([batch])
    (own_rows,) = [share for subtask, share in table.route(batch, 2, 8) if subtask == 0]
    build([own_rows])
    with pytest.raises(CheckpointMismatchError, match=r"the state of \d twice"):
        build([own_rows, own_rows])
    with pytest.raises(CheckpointMismatchError, match=r"it has no column 'timers'"):
        build([own_rows.drop_columns(["timers"])])
    index = own_rows.schema.get_field_index("value")
    with pytest.raises(CheckpointMismatchError, match=r"its column 'value' is no int64"):
        build([own_rows.set_column(index, "value", pa.array(["no number"] * own_rows.num_rows))])
    index = own_rows.schema.get_field_index("exact")
    with pytest.raises(CheckpointMismatchError, match=r"its rows cannot be read: UnpicklingError"):
        build([own_rows.set_column(index, "exact", pa.array([b"no pickle"] * own_rows.num_rows))])


def renewed(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps({**content, "digest": digest} if isinstance(content, dict) else content)


def of_first(content: Any, **changes: Any) -> Any:
    operator = {**content["operators"][0], **changes}
    return {**content, "operators": [{name: value for name, value in operator.items() if value is not None}]}


def without(name: str, content: Any) -> Any:
    return {key: value for key, value in content.items() if key != name}


MANIFESTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "none": (lambda content: [], "is none that pillarbox has written"),
    "newer": (
        lambda content: {**content, "format": 99},
        r"has format 99, this version of pillarbox reads format 1: update",
    ),
    "older": (lambda content: {**content, "format": 0}, r"has format 0, .* format 1: run the version .* that wrote it"),
    "unknown": (
        lambda content: {**content, "more": 1},
        r"holds 'more' \(Manifest\), which this version of pillarbox does not know",
    ),
    "unknown of operator": (lambda content: of_first(content, shape=1), r"holds 'shape' \(OperatorTable\)"),
    **{
        f"no {name}": (partial(without, name), "the manifest of the savepoint is not complete: ")
        for name in ("operators", "sources", "programs", "files", "epoch")
    },
    "no parts": (lambda content: of_first(content, parts=None), "is not complete: KeyError: 'parts'"),
    "no program": (lambda content: of_first(content, program=None), "is not complete: KeyError: 'program'"),
    "bad base64": (
        lambda content: of_first(content, parts=[{"name": "left", "slot": "s", "keys": [], "schema": "?"}]),
        "the manifest of the savepoint is not complete: ",
    ),
    "no schema": (
        lambda content: of_first(content, parts=[{"name": "left", "slot": "s", "keys": [], "schema": "AAAA"}]),
        "the manifest of the savepoint is not complete: ",
    ),
    "operators of another kind": (lambda content: {**content, "operators": 5}, "is not complete: TypeError"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_refused(name, tmp_path):
    change, words = MANIFESTS[name]
    manifest = write_savepoint(tmp_path / "s", of_uid(written(1, 8, None, None, [])), epoch=3)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest and "\n" not in text
    content = json.loads(text)
    assert json.loads(renewed({key: value for key, value in content.items() if key != "digest"})) == content
    del content["digest"]
    with pytest.raises(CheckpointMismatchError, match=words):
        Manifest.from_json(renewed(change(content)))


def test_a_manifest_that_was_damaged_is_refused(tmp_path):
    sources = Sources(("v1", "{}", '{"logOffset":2}'), {"0": ('{"path":"file:///in/a","batchId":0}',)})
    logs = of_uid(written(1, 8, None, None, [("value", 1, None, [1], 0)]))
    text = write_savepoint(tmp_path / "s", logs, epoch=3, sources=sources).to_json()
    with pytest.raises(CheckpointMismatchError, match="is not as it was written: its digest is not that of its"):
        Manifest.from_json(text.replace('\\"logOffset\\":2', '\\"logOffset\\":0'))
    content = text.encode()
    for index in range(len(content)):
        for bit in range(8) if LONG else (index % 8,):
            damaged = bytes([*content[:index], content[index] ^ 1 << bit, *content[index + 1 :]])
            try:
                read = damaged.decode()
            except UnicodeDecodeError:
                continue
            with pytest.raises(CheckpointMismatchError):
                Manifest.from_json(read)
    with pytest.raises(CheckpointMismatchError, match="is no JSON"):
        Manifest.from_json("{")


def test_uids_that_differ_by_their_case_have_folders_of_their_own():
    folders = [table_folder(uid) for uid in ("count", "Count", "COUNT", "count-", "cöunt", "Ünt", "x" * 101)]
    assert folders[0] == "state/count" and len({folder.lower() for folder in folders}) == len(folders)
    assert all(re.fullmatch("state/[a-z0-9.-]+", folder) for folder in folders)


def test_what_a_subtask_keeps_that_the_operator_does_not_have():
    operator = tables_of(written(2, 8, None, None, []))[0].operator
    tasks = [{"uid": "op", "subtask": 2, "task": b"x"}]
    with pytest.raises(
        CheckpointMismatchError, match=r"'op': the savepoint has state of subtask 2, .* subtasks 0 to 1"
    ):
        own_states(operator, tasks, [], unread)
    with pytest.raises(CheckpointMismatchError, match=r"'op': the savepoint has state of subtask -1"):
        own_states(operator, [], [{-1: {}}], unread)


def of_uid(logs: Logs) -> dict[tuple[str, int], Any]:
    return {("op", subtask): store for subtask, store in logs.items()}


class Interrupted(BaseException):
    """Replaces the kill of a process. It is never caught."""


def test_a_directory_whose_writing_is_interrupted_anywhere(tmp_path, monkeypatch):
    logs = of_uid(written(2, 16, None, None, [("value", n, None, [n], 0) for n in range(9)]))
    expected = write_savepoint(tmp_path / "whole", logs, epoch=3)
    directory = tmp_path / "savepoint"
    steps: list[tuple[Any, str]] = [(Path, name) for name in ("mkdir", "write_text", "rename", "unlink")]
    steps += [(files, "_digest"), (pq, "ParquetWriter"), (pq, "write_table"), (shutil, "rmtree")]
    left = [0]

    def interrupted(true, *, before):
        def step(*args, **options):
            left[0] -= 1
            here = left[0] == 0
            if here and before:
                raise Interrupted
            result = true(*args, **options)
            if here:
                raise Interrupted
            return result

        return step

    for before in (True, False):
        for number in count(1):
            left[0] = number
            with monkeypatch.context() as patch:
                for owner, name in steps:
                    patch.setattr(owner, name, interrupted(getattr(owner, name), before=before))
                try:
                    write_savepoint(directory, logs, epoch=3)
                except Interrupted:
                    pass
                else:
                    break
            # Each time over the half of the last one.
            if (directory / "manifest").exists():
                assert LocalSavepoint(directory).manifest == expected
                rmtree(directory)
                continue
            with pytest.raises(CheckpointMismatchError, match="it has no manifest"):
                LocalSavepoint(directory)
        assert number > 10 and LocalSavepoint(directory).manifest == expected
        rmtree(directory)


def test_a_directory(tmp_path):
    note = KeyNote(columns=["k"], types=["bigint"])
    changes = [("value", n, None, [n], 0) for n in range(30)] + [("space list", n, (0, n), [n, n], 0) for n in range(9)]
    logs = written(3, 16, note, Types.LONG(), changes)
    directory = tmp_path / "savepoint"
    # An incomplete earlier savepoint is overwritten, including its additional files.
    for name in ("started", "state/gone"):
        (directory / name).mkdir(parents=True)
    (directory / "state" / "gone" / "part-0.parquet").write_bytes(b"half")
    (directory / "started" / "part-0.txt").write_text("begun")
    manifest = write_savepoint(directory, of_uid(logs), epoch=3, checkpoint="/c")
    assert not (directory / "state" / "gone").exists()
    savepoint = LocalSavepoint(directory)
    assert savepoint.manifest == manifest and sorted(manifest.files) == [
        "state/op/part-0.parquet",
        "tasks/part-0.parquet",
    ]
    identities = [LogIdentity("op", subtask, 5, 16, key=note) for subtask in range(5)]
    new = restore_logs(savepoint, "op", identities)
    assert state_of(new, note, Types.LONG())[0] == state_of(logs, note, Types.LONG())[0]
    assert {view.task_state()["gate"]["valve"]["watermark"] for view in map(LogView, new.values(), new)} == {WATERMARK}
    # The new logs are valid.
    for store in new.values():
        head = LogView(store, 0).head
        assert head.newest is not None and head.newest.fits(store.chunks[head.following - 1])
    with pytest.raises(
        CheckpointMismatchError, match="no state of an operator with the uid 'no'; it has state of 'op'"
    ):
        savepoint.table("no")
    for wrong in (directory, tmp_path):
        with pytest.raises(CheckpointMismatchError, match="exists, and is no savepoint that was begun and not"):
            write_savepoint(wrong, of_uid(logs), epoch=3)
    part = directory / "state" / "op" / "part-0.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"x")
    with pytest.raises(CheckpointMismatchError, match=r"the file state/op/part-0.parquet is damaged"):
        LocalSavepoint(directory)
    (directory / "state" / "op" / "more.parquet").write_bytes(content)
    with pytest.raises(CheckpointMismatchError, match=r"the file state/op/more.parquet is none of its own; remove it"):
        LocalSavepoint(directory)
    (directory / "state" / "op" / "more.parquet").unlink()
    part.unlink()
    with pytest.raises(CheckpointMismatchError, match=r"the file state/op/part-0.parquet is missing"):
        LocalSavepoint(directory)
    for path in (directory / "manifest").iterdir():
        path.unlink()
    with pytest.raises(CheckpointMismatchError, match="was begun, and not completed: it has no manifest"):
        LocalSavepoint(directory)
    with pytest.raises(CheckpointMismatchError, match="is no savepoint: it has no manifest"):
        LocalSavepoint(tmp_path)


@pytest.mark.parametrize("name", ["LIST(Point)", "", "ROW(a: LONG, A: LONG)"])
def test_no_columns_for_a_type(name):
    with pytest.raises(ValueError, match="is no plain type"):
        column_type(name)


def test_unfinished_records_stay_with_their_keys() -> None:
    entry = ("element", 0, "key", ("key", 1), None, 0)
    states = [OwnState({"operators": {"op": [entry]}}), OwnState()]
    assert redistribute("op", states, 2, keys_stay=True)[0].task["operators"] == {"op": [entry]}
    for parallelism in (2, 3):
        with pytest.raises(CheckpointMismatchError, match=r"'op' has unfinished records .* keep its 2 subtasks"):
            redistribute("op", states, parallelism)
